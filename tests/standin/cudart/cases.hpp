// The runtime's test cases. They are in a library that has the CUDA runtime linked in, as NCCL has, and two files of
// relocatable device code. Each returns what failed, or an empty string.
#pragma once
#include <string>

namespace standin::cudart::cases {

// launch_cases.cu
std::string kernel_calls_functions_of_another_file();
std::string table_holds_functions_of_both_files();
std::string variables_are_shared_between_files();
std::string blocks_use_dynamic_shared_memory();
std::string launch_by_configuration();
std::string kernels_know_their_attributes();
std::string wrong_launches_are_errors();

// stream_cases.cu
std::string events_order_streams();
std::string host_functions_wait_their_turn();
std::string captured_work_runs_at_each_graph_launch();
std::string capture_takes_dependencies_from_outside();
std::string graph_of_nodes_made_by_hand();
std::string user_object_ends_with_its_graph();

// memory_cases.cu
std::string copies_of_each_kind();
std::string pinned_memory_has_a_device_address();
std::string pool_memory_follows_its_stream();
std::string pointers_tell_where_they_belong();
std::string too_much_memory_is_an_error_once();
std::string each_thread_has_its_device();
std::string devices_have_properties_and_addresses();
std::string what_is_missing_says_so();
// For a process that hasn't used CUDA yet.
std::string another_process_writes_into_our_memory();

}  // namespace standin::cudart::cases
