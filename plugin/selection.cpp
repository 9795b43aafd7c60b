#include "selection.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

namespace gradprobe {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

// The words between commas, without blanks around them; empty ones are left out.
std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> result;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view word = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    if (!word.empty()) result.push_back(word);
  }
  return result;
}

constexpr Function kFunctions[] = {Function::all_reduce, Function::reduce_scatter, Function::all_gather,
                                   Function::broadcast, Function::reduce};

template <typename Values>
std::optional<std::uint32_t> parse_set(std::string_view text, const Values& values, std::string* wrong) {
  std::uint32_t set = 0;
  for (const std::string_view word : words(text)) {
    const auto found = std::find_if(std::begin(values), std::end(values),
                                    [&](auto value) { return lower(name(value)) == lower(word); });
    if (found == std::end(values)) {
      *wrong = word;
      return std::nullopt;
    }
    set |= Selection::bit(*found);
  }
  if (set == 0) {
    *wrong = text;
    return std::nullopt;
  }
  return set;
}

template <typename Values>
std::string set_text(std::uint32_t set, const Values& values) {
  std::string text;
  for (const auto value : values)
    if ((set & Selection::bit(value)) != 0) text += (text.empty() ? "" : ",") + std::string(name(value));
  return text;
}

constexpr Datatype kDatatypes[] = {Datatype::i8,  Datatype::u8,   Datatype::i32,    Datatype::u32,
                                   Datatype::i64, Datatype::u64,  Datatype::f16,    Datatype::f32,
                                   Datatype::f64, Datatype::bf16, Datatype::f8e4m3, Datatype::f8e5m2};

bool parse_number(std::string_view text, int base, std::uint64_t* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number, base);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::optional<std::uint32_t> parse_functions(std::string_view text, std::string* wrong) {
  return parse_set(text, kFunctions, wrong);
}

std::optional<std::uint32_t> parse_datatypes(std::string_view text, std::string* wrong) {
  return parse_set(text, kDatatypes, wrong);
}

std::string functions_text(std::uint32_t functions) {
  return set_text(functions, kFunctions);
}

std::string datatypes_text(std::uint32_t datatypes) {
  return datatypes == Selection::kAllDatatypes ? "all" : set_text(datatypes, kDatatypes);
}

bool CommFilter::Term::fits(std::uint64_t comm_id, const std::string& name, std::uint32_t nranks) const {
  switch (field) {
    case Field::all:
      return true;
    case Field::id:
      return comm_id == number;
    case Field::name:
      return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
    case Field::size:
      break;
  }
  switch (relation) {
    case Relation::equal:
      return nranks == number;
    case Relation::unequal:
      return nranks != number;
    case Relation::less:
      return nranks < number;
    case Relation::at_most:
      return nranks <= number;
    case Relation::more:
      return nranks > number;
    case Relation::at_least:
      return nranks >= number;
  }
  return false;
}

bool CommFilter::parse_number_term(std::string_view word, Term* term) {
  static constexpr std::pair<std::string_view, Relation> kRelations[] = {
      {"!=", Relation::unequal}, {"<=", Relation::at_most}, {">=", Relation::at_least},
      {"=", Relation::equal},    {"<", Relation::less},     {">", Relation::more}};
  word.remove_prefix(std::string_view("size").size());
  for (const auto& [sign, relation] : kRelations) {
    if (!word.starts_with(sign)) continue;
    term->field = Field::size;
    term->relation = relation;
    return parse_number(word.substr(sign.size()), 10, &term->number);
  }
  return false;
}

std::optional<CommFilter::Term> CommFilter::parse_term(std::string_view word) {
  Term term;
  if (word.starts_with('!')) {
    term.excludes = true;
    word.remove_prefix(1);
  }
  if (word == "all") return term;
  if (word.starts_with("id=")) {
    std::string_view digits = word.substr(3);
    if (digits.starts_with("0x")) digits.remove_prefix(2);
    term.field = Field::id;
    if (!parse_number(digits, 16, &term.number)) return std::nullopt;
    return term;
  }
  if (word.starts_with("name=")) {
    term.field = Field::name;
    term.pattern = word.substr(5);
    return term;
  }
  if (word.starts_with("size") && parse_number_term(word, &term)) return term;
  return std::nullopt;
}

std::optional<CommFilter> CommFilter::parse(std::string_view text, std::string* wrong) {
  CommFilter filter;
  const std::vector<std::string_view> list = words(text);
  if (list.size() == 1 && list[0] == "auto") return filter;
  for (const std::string_view word : list) {
    std::optional<Term> term = parse_term(word);
    if (!term) {
      *wrong = word;
      return std::nullopt;
    }
    filter.terms_.push_back(std::move(*term));
  }
  if (filter.terms_.empty()) {
    *wrong = text;
    return std::nullopt;
  }
  filter.text_ = text;
  return filter;
}

CommFilter::Answer CommFilter::answer(std::uint64_t comm_id, const std::string& name, std::uint32_t nranks) const {
  if (terms_.empty()) return Answer::automatic;
  bool included = false, any_includes = false;
  for (const Term& term : terms_) {
    any_includes |= !term.excludes;
    if (!term.fits(comm_id, name, nranks)) continue;
    if (term.excludes) return Answer::leave_out;
    included = true;
  }
  return included || !any_includes ? Answer::measure : Answer::leave_out;
}

}  // namespace gradprobe
