// What the settings that choose communicators and calls mean.
#include "selection.hpp"

#include <gtest/gtest.h>

namespace gradprobe {
namespace {

std::uint32_t functions(const char* text) {
  std::string wrong;
  return parse_functions(text, &wrong).value_or(0);
}

bool takes(const Selection& s, Function function, Datatype datatype, std::uint64_t count, bool tiny) {
  return s.takes_function(function) && s.takes_input(datatype, count, tiny);
}

TEST(Selection, FunctionsByName) {
  EXPECT_EQ(functions("AllReduce"), Selection::bit(Function::all_reduce));
  EXPECT_EQ(functions("allreduce, REDUCESCATTER,"),
            Selection::bit(Function::all_reduce) | Selection::bit(Function::reduce_scatter));
  EXPECT_EQ(functions("AllReduce,ReduceScatter,Reduce,AllGather,Broadcast"), Selection::kAllFunctions);
}

TEST(Selection, WrongWordsAreNamed) {
  std::string wrong;
  EXPECT_FALSE(parse_functions("allreduce,allredcue", &wrong));
  EXPECT_EQ(wrong, "allredcue");
  EXPECT_FALSE(parse_functions(",", &wrong));
  EXPECT_FALSE(parse_datatypes("bf16,float", &wrong));
  EXPECT_EQ(wrong, "float");
  EXPECT_FALSE(parse_datatypes("unknown", &wrong));
}

TEST(Selection, DatatypesByName) {
  std::string wrong;
  EXPECT_EQ(parse_datatypes("BF16,f32", &wrong), Selection::bit(Datatype::bf16) | Selection::bit(Datatype::f32));
  EXPECT_EQ(datatypes_text(Selection::bit(Datatype::bf16) | Selection::bit(Datatype::f32)), "f32,bf16");
  EXPECT_EQ(datatypes_text(Selection::kAllDatatypes), "all");
}

TEST(Selection, TinyInputsByTheirFunctionOnly) {
  Selection s;
  s.functions = Selection::bit(Function::all_reduce);
  s.datatypes = Selection::bit(Datatype::bf16);
  s.min_count = 1000;
  EXPECT_TRUE(takes(s, Function::all_reduce, Datatype::bf16, 1000, false));
  EXPECT_FALSE(takes(s, Function::all_reduce, Datatype::bf16, 999, false));
  EXPECT_FALSE(takes(s, Function::all_reduce, Datatype::f32, 1000, false));
  EXPECT_FALSE(takes(s, Function::all_reduce, Datatype::unknown, 1000, false));
  EXPECT_FALSE(takes(s, Function::reduce_scatter, Datatype::bf16, 1000, false));
  EXPECT_TRUE(takes(s, Function::all_reduce, Datatype::f32, 1, true));
  EXPECT_FALSE(takes(s, Function::all_gather, Datatype::f32, 1, true));
  EXPECT_TRUE(takes(Selection(), Function::all_reduce, Datatype::unknown, 1000, false));
  EXPECT_FALSE(takes(Selection(), Function::unknown, Datatype::f32, 1000, false));
}

using Answer = CommFilter::Answer;

Answer answer(const char* filter, std::uint32_t nranks, const char* name = "", std::uint64_t id = 0xab12) {
  std::string wrong;
  const auto parsed = CommFilter::parse(filter, &wrong);
  EXPECT_TRUE(parsed) << filter << ": " << wrong;
  return parsed->answer(id, name, nranks);
}

TEST(CommFilter, AutomaticUnlessToldOtherwise) {
  EXPECT_EQ(CommFilter().answer(1, "", 8), Answer::automatic);
  EXPECT_EQ(answer("auto", 8), Answer::automatic);
  EXPECT_EQ(answer("all", 8), Answer::measure);
  EXPECT_EQ(answer("!all", 8), Answer::leave_out);
}

TEST(CommFilter, BySize) {
  EXPECT_EQ(answer("size=8", 8), Answer::measure);
  EXPECT_EQ(answer("size=8", 9), Answer::leave_out);
  EXPECT_EQ(answer("size=8,size=16", 16), Answer::measure);
  EXPECT_EQ(answer("size>=8", 8), Answer::measure);
  EXPECT_EQ(answer("size>8", 8), Answer::leave_out);
  EXPECT_EQ(answer("size<=8", 9), Answer::leave_out);
  EXPECT_EQ(answer("size<8", 7), Answer::measure);
  EXPECT_EQ(answer("size!=2", 2), Answer::leave_out);
  EXPECT_EQ(answer("size!=2", 4), Answer::measure);
}

TEST(CommFilter, NegativeTermsAloneLeaveTheRest) {
  EXPECT_EQ(answer("!size=2", 2), Answer::leave_out);
  EXPECT_EQ(answer("!size=2", 4), Answer::measure);
  EXPECT_EQ(answer("!size=2,!size=4", 4), Answer::leave_out);
  EXPECT_EQ(answer("all,!name=*tp*", 4, "mesh_tp_0"), Answer::leave_out);
  EXPECT_EQ(answer("size=4,!name=*tp*", 4, "dp"), Answer::measure);
  EXPECT_EQ(answer("size=4,!name=*tp*", 8, "dp"), Answer::leave_out);
}

TEST(CommFilter, ByIdAndName) {
  EXPECT_EQ(answer("id=ab12", 2), Answer::measure);
  EXPECT_EQ(answer("id=0x000000000000AB12", 2), Answer::measure);
  EXPECT_EQ(answer("id=ab13", 2), Answer::leave_out);
  EXPECT_EQ(answer("name=dp?", 2, "dp1"), Answer::measure);
  EXPECT_EQ(answer("name=dp?", 2, "dp"), Answer::leave_out);
  EXPECT_EQ(answer("name=", 2, ""), Answer::measure);
}

TEST(CommFilter, WrongTermsAreNamed) {
  for (const char* text : {"size", "size=", "size=x", "size~8", "size=8x", "id=", "id=xyz", "tp", "auto,size=2", "",
                           ",", "size=-1", "size=99999999999999999999"}) {
    std::string wrong;
    EXPECT_FALSE(CommFilter::parse(text, &wrong)) << text;
  }
  std::string wrong;
  EXPECT_FALSE(CommFilter::parse("size=8,nmae=x", &wrong));
  EXPECT_EQ(wrong, "nmae=x");
}

}  // namespace
}  // namespace gradprobe
