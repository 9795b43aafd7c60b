// Which communicators and which of their calls are measured: GRADPROBE_COLLECTIVES, _MIN_COUNT, _DTYPES and _COMMS.
#pragma once

#include <gradprobe/ring_format.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gradprobe {

// By call. The same on all ranks, as the settings are.
struct Selection {
  static constexpr std::uint32_t kAllFunctions = 0x3e;  // bit of each Function but `unknown`
  static constexpr std::uint32_t kAllDatatypes = ~0u;   // bit of each Datatype; 31: unknown
  std::uint32_t functions = kAllFunctions;
  std::uint32_t datatypes = kAllDatatypes;
  std::uint64_t min_count = 0;  // elements of an input

  static constexpr std::uint32_t bit(Function f) { return 1u << static_cast<unsigned>(f); }
  static constexpr std::uint32_t bit(Datatype t) {
    return 1u << (t == Datatype::unknown ? 31u : static_cast<unsigned>(t));
  }

  bool takes_function(Function function) const { return (functions & bit(function)) != 0; }
  // Tiny inputs (losses and the like) are selected by their function only.
  bool takes_input(Datatype datatype, std::uint64_t count, bool tiny) const {
    return tiny || (count >= min_count && (datatypes & bit(datatype)) != 0);
  }
};

// "AllReduce,reducescatter": a set of Selection::bit(Function). None, and the wrong word, when a word is unknown.
std::optional<std::uint32_t> parse_functions(std::string_view text, std::string* wrong);
// "bf16,f32": likewise.
std::optional<std::uint32_t> parse_datatypes(std::string_view text, std::string* wrong);
// As parse_functions() and parse_datatypes() read them.
std::string functions_text(std::uint32_t functions);
std::string datatypes_text(std::uint32_t datatypes);

// By communicator: a list of terms. A communicator is measured when no term with '!' fits it and one without does, or
// when all terms have '!'.
//
//   all              every communicator
//   auto             those that carry gradients, as far as traffic_role.hpp can tell (alone in the list)
//   size=8           ranks; also size!=8, size<8, size<=8, size>8, size>=8
//   id=0123456789abcdef   NCCL's number of the communicator, as in the names of ring files
//   name=dp*         the name that the framework gave it, with * and ? as in the shell
class CommFilter {
 public:
  enum class Answer { automatic, measure, leave_out };

  static std::optional<CommFilter> parse(std::string_view text, std::string* wrong);
  Answer answer(std::uint64_t comm_id, const std::string& name, std::uint32_t nranks) const;
  const std::string& text() const { return text_; }

 private:
  enum class Field { all, size, id, name };
  enum class Relation { equal, unequal, less, at_most, more, at_least };
  struct Term {
    bool excludes = false;
    Field field = Field::all;
    Relation relation = Relation::equal;
    std::uint64_t number = 0;
    std::string pattern;
    bool fits(std::uint64_t comm_id, const std::string& name, std::uint32_t nranks) const;
  };
  static std::optional<Term> parse_term(std::string_view word);
  static bool parse_number_term(std::string_view word, Term* term);

  std::vector<Term> terms_;  // empty: automatic
  std::string text_ = "auto";
};

}  // namespace gradprobe
