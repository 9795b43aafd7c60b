// Runs the cases of cases.hpp on the stand-ins, by with_standins.sh.
#include <gtest/gtest.h>

#include "cases.hpp"

namespace standin::cudart::cases {
namespace {

#define CASE(GROUP, NAME, FUNCTION) \
  TEST(GROUP, NAME) {               \
    EXPECT_EQ(FUNCTION(), "");      \
  }

CASE(DeviceCode, KernelCallsFunctionsOfAnotherFile, kernel_calls_functions_of_another_file)
CASE(DeviceCode, TableHoldsFunctionsOfBothFiles, table_holds_functions_of_both_files)
CASE(DeviceCode, VariablesAreSharedBetweenFiles, variables_are_shared_between_files)
CASE(Launch, BlocksUseDynamicSharedMemory, blocks_use_dynamic_shared_memory)
CASE(Launch, ByConfigurationAndByHandle, launch_by_configuration)
CASE(Launch, KernelsKnowTheirAttributes, kernels_know_their_attributes)
CASE(Launch, WrongLaunchesAreErrors, wrong_launches_are_errors)
CASE(Streams, EventsOrderStreams, events_order_streams)
CASE(Streams, HostFunctionsWaitTheirTurn, host_functions_wait_their_turn)
CASE(Graphs, CapturedWorkRunsAtEachLaunch, captured_work_runs_at_each_graph_launch)
CASE(Graphs, CaptureTakesDependenciesFromOutside, capture_takes_dependencies_from_outside)
CASE(Graphs, NodesMadeByHand, graph_of_nodes_made_by_hand)
CASE(Graphs, UserObjectEndsWithItsGraph, user_object_ends_with_its_graph)
CASE(Memory, CopiesOfEachKind, copies_of_each_kind)
CASE(Memory, PinnedMemoryHasADeviceAddress, pinned_memory_has_a_device_address)
CASE(Memory, PoolMemoryFollowsItsStream, pool_memory_follows_its_stream)
CASE(Memory, PointersTellWhereTheyBelong, pointers_tell_where_they_belong)
CASE(Memory, TooMuchIsAnErrorOnce, too_much_memory_is_an_error_once)
CASE(Memory, AnotherProcessWritesIntoOurs, another_process_writes_into_our_memory)
CASE(Devices, EachThreadHasItsOwn, each_thread_has_its_device)
CASE(Devices, HavePropertiesAndAddresses, devices_have_properties_and_addresses)
CASE(Missing, FunctionsSayThatTheyAreMissing, what_is_missing_says_so)

}  // namespace
}  // namespace standin::cudart::cases
