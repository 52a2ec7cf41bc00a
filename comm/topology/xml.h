#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::comm::topology {

// One element of an XML file. `line` counts from 1.
struct XmlElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
  std::string text;  // all character data inside, without that of the children
  std::vector<XmlElement> children;
  int line = 0;

  const std::string* attribute(std::string_view key) const;
  const XmlElement* child(std::string_view wanted) const;  // the first of that name
  std::string child_text(std::string_view wanted) const;   // trimmed; empty where there is none
};

// The root element. Made for input that nobody vouches for: at most 16 MiB, 128 levels, 200 000 elements; DOCTYPE, comments and
// processing instructions are skipped and nothing is ever fetched; entities are the five of XML and numbers. InputError with
// FILE:LINE for anything not well-formed. Pure; no threads, no blocking.
XmlElement parse_xml(std::string_view text, const std::string& file);

}  // namespace muster::comm::topology
