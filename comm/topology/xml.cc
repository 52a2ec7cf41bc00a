#include "comm/topology/xml.h"

#include <cstdint>

#include "comm/base/error.h"
#include "comm/topology/words.h"

namespace muster::comm::topology {
namespace {

constexpr size_t kMaxBytes = 16u << 20;
constexpr int kMaxDepth = 128;
constexpr int kMaxElements = 200000;
constexpr size_t kMaxAttributes = 256;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' ||
         c == ':' || static_cast<unsigned char>(c) >= 0x80;
}

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& file) : text_(text), file_(file) {
    if (text.size() > kMaxBytes) refuse("{}: found {} bytes; wanted at most {}", file, text.size(), kMaxBytes);
    take("\xef\xbb\xbf");
  }

  XmlElement document() {
    skip_misc();
    if (!looking_at("<")) wrong("no element", "an XML root element");
    XmlElement root = element(1);
    skip_misc();
    if (at_ < text_.size()) wrong("text after the root element", "the end of the file");
    return root;
  }

 private:
  [[noreturn]] void wrong(const std::string& found, const std::string& wanted) const {
    refuse("{}:{}: found {}; wanted {}", file_, line_, found, wanted);
  }

  bool looking_at(std::string_view word) const { return text_.substr(at_, word.size()) == word; }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  void advance(size_t bytes) {
    for (const size_t end = std::min(at_ + bytes, text_.size()); at_ < end; ++at_) line_ += text_[at_] == '\n';
  }

  bool take(std::string_view word) {
    if (!looking_at(word)) return false;
    advance(word.size());
    return true;
  }

  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) advance(1);
  }

  // Up to and with `end`; what lies before it.
  std::string_view until(std::string_view end, const char* what) {
    const size_t found = text_.find(end, at_);
    if (found == std::string_view::npos) wrong(std::string("the end of the file inside ") + what, std::string(end));
    const auto inside = text_.substr(at_, found - at_);
    advance(found - at_ + end.size());
    return inside;
  }

  // Internal subsets nest brackets and quotes; nothing of them is used.
  void skip_doctype() {
    int brackets = 0;
    for (; at_ < text_.size(); advance(1)) {
      const char c = text_[at_];
      if (c == '[') ++brackets;
      if (c == ']') --brackets;
      if (c == '>' && brackets <= 0) return advance(1);
    }
    wrong("the end of the file inside DOCTYPE", ">");
  }

  void skip_misc() {
    for (;;) {
      skip_space();
      if (take("<!--")) {
        until("-->", "a comment");
      } else if (take("<?")) {
        until("?>", "a processing instruction");
      } else if (take("<!DOCTYPE")) {
        skip_doctype();
      } else {
        return;
      }
    }
  }

  std::string name(const char* what) {
    const size_t start = at_;
    while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
    if (at_ == start) wrong(printable(text_.substr(at_, 1)), what);
    return std::string(text_.substr(start, at_ - start));
  }

  uint32_t number_of(std::string_view digits) const {
    const bool hex = digits.starts_with("x");
    const auto value = parse_unsigned(digits.substr(hex ? 1 : 0), hex ? 16 : 10);
    if (!value || *value == 0 || *value > 0x10ffff || (*value >= 0xd800 && *value < 0xe000))
      wrong("the character number " + printable(digits), "1 to 0x10ffff");
    return static_cast<uint32_t>(*value);
  }

  void append_entity(std::string& out, std::string_view entity) const {
    static constexpr std::pair<const char*, char> kEntities[] = {
        {"lt", '<'}, {"gt", '>'}, {"amp", '&'}, {"quot", '"'}, {"apos", '\''}};
    for (const auto& [known, c] : kEntities)
      if (entity == known) return void(out += c);
    if (!entity.starts_with("#")) wrong("the entity " + printable(entity), "one of lt, gt, amp, quot, apos");
    append_utf8(out, number_of(entity.substr(1)));
  }

  std::string unescaped(std::string_view raw) const {
    std::string out;
    for (size_t at = 0; at < raw.size();) {
      if (raw[at] != '&') {
        out += raw[at++];
        continue;
      }
      const size_t end = raw.find(';', at);
      if (end == std::string_view::npos || end - at > 12) wrong("a lone &", "&amp;");
      append_entity(out, raw.substr(at + 1, end - at - 1));
      at = end + 1;
    }
    return out;
  }

  void attribute(XmlElement& element) {
    std::string key = name("an attribute's name");
    skip_space();
    if (!take("=")) wrong("attribute " + printable(key) + " without a value", "=\"...\"");
    skip_space();
    const char quote = peek();
    if (quote != '"' && quote != '\'') wrong("attribute " + printable(key) + " without quotes", "=\"...\"");
    advance(1);
    const auto raw = until(std::string_view(&quote, 1), "an attribute");
    if (raw.find('<') != std::string_view::npos) wrong("< inside attribute " + printable(key), "&lt; or a closing quote");
    if (element.attribute(key)) wrong("attribute " + printable(key) + " twice", "it once");
    if (element.attributes.size() >= kMaxAttributes) wrong("more attributes", std::to_string(kMaxAttributes) + " at most");
    element.attributes.emplace_back(std::move(key), unescaped(raw));
  }

  // The start tag; true where the element has content.
  bool start_tag(XmlElement& element) {
    element.line = line_;
    advance(1);
    element.name = name("an element's name");
    for (;;) {
      skip_space();
      if (take("/>")) return false;
      if (take(">")) return true;
      if (at_ >= text_.size()) wrong("the end of the file inside <" + printable(element.name), ">");
      attribute(element);
    }
  }

  void end_tag(const XmlElement& element) {
    const std::string closed = name("an element's name");
    if (closed != element.name) {
      wrong("</" + printable(closed) + ">", "</" + printable(element.name) + "> for line " + std::to_string(element.line));
    }
    skip_space();
    if (!take(">")) wrong("text inside </" + printable(closed), ">");
  }

  void content(XmlElement& element, int depth) {
    for (;;) {
      const size_t end = text_.find('<', at_);
      if (end == std::string_view::npos) {
        advance(text_.size());
        wrong("the end of the file", "</" + printable(element.name) + "> for line " + std::to_string(element.line));
      }
      element.text += unescaped(text_.substr(at_, end - at_));
      advance(end - at_);
      if (take("</")) return end_tag(element);
      if (take("<!--")) {
        until("-->", "a comment");
      } else if (take("<![CDATA[")) {
        element.text += until("]]>", "CDATA");
      } else if (take("<?")) {
        until("?>", "a processing instruction");
      } else {
        element.children.push_back(this->element(depth + 1));
      }
    }
  }

  XmlElement element(int depth) {
    if (depth > kMaxDepth) wrong("elements nested deeper", std::to_string(kMaxDepth) + " levels at most");
    if (++elements_ > kMaxElements) wrong("more elements", std::to_string(kMaxElements) + " at most");
    XmlElement out;
    if (start_tag(out)) content(out, depth);
    return out;
  }

  std::string_view text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1;
  int elements_ = 0;
};

}  // namespace

const std::string* XmlElement::attribute(std::string_view key) const {
  for (const auto& [name, value] : attributes)
    if (name == key) return &value;
  return nullptr;
}

const XmlElement* XmlElement::child(std::string_view wanted) const {
  for (const auto& element : children)
    if (element.name == wanted) return &element;
  return nullptr;
}

std::string XmlElement::child_text(std::string_view wanted) const {
  const auto* element = child(wanted);
  return element ? trimmed(element->text) : "";
}

XmlElement parse_xml(std::string_view text, const std::string& file) { return Parser(text, file).document(); }

}  // namespace muster::comm::topology
