// Holds the structs that an adapter declares against the table of NCCL's layouts (abi/profiler-abi.tsv).
#pragma once

#include <cstddef>

#include "profiler_abi.hpp"

// NOLINTBEGIN(bugprone-macro-parentheses): names of types and members can't have any
// `member` of `Type` lies where NCCL has `field` (a gradprobe::abi::Field), and is as large.
#define GRADPROBE_ABI_FIELD(Type, member, field)                                                               \
  static_assert(                                                                                               \
      offsetof(Type, member) == (field).offset && sizeof(static_cast<Type*>(nullptr)->member) == (field).size, \
      #Type "::" #member " is not where NCCL's " #field " is")

#define GRADPROBE_ABI_STRUCT(Type, layout) \
  static_assert(sizeof(Type) == (layout::kSize), #Type " has not the size of NCCL's " #layout)

// The exported struct: the same fields in all versions.
#define GRADPROBE_ABI_PROFILER(Type, layout)                               \
  GRADPROBE_ABI_STRUCT(Type, layout);                                      \
  GRADPROBE_ABI_FIELD(Type, name, layout::name);                           \
  GRADPROBE_ABI_FIELD(Type, init, layout::init);                           \
  GRADPROBE_ABI_FIELD(Type, start_event, layout::startEvent);              \
  GRADPROBE_ABI_FIELD(Type, stop_event, layout::stopEvent);                \
  GRADPROBE_ABI_FIELD(Type, record_event_state, layout::recordEventState); \
  GRADPROBE_ABI_FIELD(Type, finalize, layout::finalize)
// NOLINTEND(bugprone-macro-parentheses)
