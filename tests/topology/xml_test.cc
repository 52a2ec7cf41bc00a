#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/base/error.h"
#include "comm/topology/words.h"
#include "comm/topology/xml.h"

namespace muster::comm::topology {
namespace {

using testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    parse_xml(text, "f");
  } catch (const InputError& error) {
    return error.what();
  }
  return "read";
}

TEST(Xml, ReadsWhatTopologyFilesHold) {
  const auto root = parse_xml(
      "\xef\xbb\xbf<?xml version='1.0'?>\n<!DOCTYPE a [<!ENTITY x \"y\">]>\n<!-- c -->\n<a b='1 &lt; 2' c=\"&#65;&#x42;\">\n"
      " t<d/> &amp; <![CDATA[<raw>]]><d e=\"f\"> g </d><!-- - --></a>\n",
      "f");
  EXPECT_EQ(root.name, "a");
  EXPECT_EQ(root.line, 4);
  EXPECT_EQ(*root.attribute("b"), "1 < 2");
  EXPECT_EQ(*root.attribute("c"), "AB");
  EXPECT_EQ(trimmed(root.text), "t & <raw>");
  ASSERT_EQ(root.children.size(), 2u);
  EXPECT_EQ(root.children[1].line, 5);
  EXPECT_EQ(*root.children[1].attribute("e"), "f");
  EXPECT_EQ(root.children[1].text, " g ");
}

TEST(Xml, RefusesWithTheLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "f:1: found no element"},
      {"<a>\n<b>\n</a>", "f:3: found </a>; wanted </b> for line 2"},
      {"<a>\n", "f:2: found the end of the file; wanted </a> for line 1"},
      {"<a b=1/>", "f:1: found attribute b without quotes"},
      {"<a b/>", "f:1: found attribute b without a value"},
      {"<a b='1' b='2'/>", "f:1: found attribute b twice"},
      {"<a b='<'/>", "f:1: found < inside attribute b"},
      {"<a>&lol;</a>", "f:1: found the entity lol"},
      {"<a>&</a>", "f:1: found a lone &"},
      {"<a>&#0;</a>", "f:1: found the character number 0"},
      {"<a/><b/>", "f:1: found text after the root element"},
      {"<a><!-- ", "f:1: found the end of the file inside a comment"},
      {"<!DOCTYPE a [", "f:1: found the end of the file inside DOCTYPE"},
  };
  for (const auto& [text, wanted] : cases) EXPECT_THAT(refusal(text), HasSubstr(wanted)) << text;
}

TEST(Xml, HasLimits) {
  std::string deep, wide = "<a>";
  for (int i = 0; i < 100000; ++i) deep += "<a>";
  EXPECT_THAT(refusal(deep), HasSubstr("found elements nested deeper; wanted 128 levels at most"));
  for (int i = 0; i < 200001; ++i) wide += "<b/>";
  EXPECT_THAT(refusal(wide + "</a>"), HasSubstr("found more elements; wanted 200000 at most"));
  EXPECT_THAT(refusal("<a>" + std::string(17 << 20, ' ') + "</a>"), HasSubstr("found 17825799 bytes"));
}

TEST(Words, BusIds) {
  EXPECT_EQ(normal_bus_id("00000000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(normal_bus_id("3b:00.0"), "0000:3b:00.0");
  EXPECT_EQ(normal_bus_id("10000:E1:00.0"), "10000:e1:00.0");
  for (const char* wrong :
       {"", "3b", "0000:3b:00", "0000:3b:00.00", "0000:xb:00.0", "000000000:3b:00.0", "0000:3b:0.0", ":3b:00.0"})
    EXPECT_FALSE(normal_bus_id(wrong)) << wrong;
}

TEST(Words, CpuListsAndMasks) {
  EXPECT_EQ(to_cpu_list(*parse_cpu_list("3,0-1,2,8")), "0-3,8");
  EXPECT_EQ(to_cpu_list(*parse_cpu_list("")), "");
  EXPECT_EQ(to_cpu_list(*parse_cpu_mask("000000ff,ffff0000")), "16-39");
  EXPECT_EQ(to_cpu_list(*parse_cpu_mask("0x1,,0x80000000")), "31,64");
  for (const char* wrong : {"1-", "-1", "a", "2-1", "1,,2", "0-8192"}) EXPECT_FALSE(parse_cpu_list(wrong)) << wrong;
  for (const char* wrong : {"", "fffffffff", "x", "-1"}) EXPECT_FALSE(parse_cpu_mask(wrong)) << wrong;
}

TEST(Words, MessagesStayOnOneLine) {
  EXPECT_EQ(in_quotes("a\nb\xff"), "'a\\x0ab\\xff'");
  EXPECT_EQ(printable(std::string(50, 'a')), std::string(40, 'a') + "...");
}

}  // namespace
}  // namespace muster::comm::topology
