#include "comm/control/frames.h"

#include <random>

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/base/bytes.h"
#include "comm/control/control_message.h"

namespace muster::comm {
namespace {

TEST(Frames, ArriveWholeHoweverTheStreamIsCut) {
  const std::vector<std::string> bodies = {"", "a", std::string(70'000, 'x'), "last"};
  std::string stream;
  for (const auto& body : bodies) stream += encode_frame(FrameType::kGive, body);
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, stream.size()}) {
    FrameReader reader;
    std::vector<std::string> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.feed(std::string_view(stream).substr(at, piece));
      while (auto frame = reader.next()) got.push_back(frame->body);
    }
    EXPECT_EQ(got, bodies) << piece;
  }
}

TEST(Frames, AMalformedHeaderEndsTheStream) {
  const std::string good = encode_frame(FrameType::kTable, "abc");
  for (const size_t byte : {0, 3, 4, 7, 11}) {  // magic, version, type, type, length
    std::string bad = good;
    bad[byte] = static_cast<char>(0x7f);
    FrameReader reader;
    reader.feed(bad + good);
    EXPECT_FALSE(reader.next()) << byte;
    EXPECT_NE(reader.error(), "") << byte;
    reader.feed(good);
    EXPECT_FALSE(reader.next()) << byte;
  }
}

TEST(Frames, AnOversizedLengthIsRefusedBeforeItsBytesCome) {
  std::string header = encode_frame(FrameType::kGive, "");
  const uint32_t bytes = kLargestFrame + 1;
  header.replace(8, 4, reinterpret_cast<const char*>(&bytes), 4);
  FrameReader reader;
  reader.feed(header);
  EXPECT_FALSE(reader.next());
  EXPECT_THAT(reader.error(), testing::HasSubstr("wanted at most"));
}

TEST(Frames, WhatTheLinkDoesNotTakeStays) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const std::string all = encode_frame(FrameType::kTable, std::string(4 << 20, 'y'));
  std::string left = all;
  FrameReader reader;
  std::optional<Frame> frame;
  for (int turn = 0; turn < 10'000 && !frame; ++turn) {
    ASSERT_TRUE(write_available(pair[0], left));
    if (turn == 0) {
      EXPECT_GT(left.size(), 0u);
    }
    ASSERT_TRUE(read_available(pair[1], reader));
    frame = reader.next();
  }
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->body.size(), size_t{4} << 20);
  close(pair[1]);
  left = all;
  EXPECT_FALSE(write_available(pair[0], left));
  EXPECT_FALSE(write_all(pair[0], all, Deadline::after(milliseconds(1000))));
  close(pair[0]);
}

TEST(ControlMessages, SurviveTheWire) {
  const ControlMessage m{ControlMessage::Type::kTable, -5, 7, "text", {"", std::string(1000, 'z'), "c"}};
  const auto back = decode(encode(m));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->type, m.type);
  EXPECT_EQ(back->number, m.number);
  EXPECT_EQ(back->other, m.other);
  EXPECT_EQ(back->text, m.text);
  EXPECT_EQ(back->table, m.table);
}

TEST(ControlMessages, EveryCutAndEveryAdditionIsRefused) {
  const std::string whole = encode({ControlMessage::Type::kTable, 1, 2, "text", {"a", "bb"}});
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(decode(std::string_view(whole).substr(0, size))) << size;
  EXPECT_FALSE(decode(whole + "x"));
}

TEST(ControlMessages, RandomBytesNeverHarm) {
  std::mt19937 random(20240);
  const std::string whole = encode({ControlMessage::Type::kTable, 1, 2, "text", {"a", "bb", "ccc"}});
  int accepted = 0;
  for (int round = 0; round < 200'000; ++round) {
    std::string bytes = whole;
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    if (const auto m = decode(bytes)) {
      ++accepted;
      EXPECT_LE(m->table.size(), bytes.size());
    }
  }
  EXPECT_GT(accepted, 0);  // changes of numbers and texts are still messages
}

TEST(Frames, RandomBytesNeverHarm) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string stream;
    for (int i = 0; i < 4; ++i) stream += encode_frame(static_cast<FrameType>(1 + random() % 4), std::string(random() % 40, 'b'));
    stream[random() % stream.size()] = static_cast<char>(random());
    FrameReader reader;
    for (size_t at = 0; at < stream.size(); at += 5) {
      reader.feed(std::string_view(stream).substr(at, 5));
      while (auto frame = reader.next()) EXPECT_LE(frame->body.size(), stream.size());
    }
  }
}

}  // namespace
}  // namespace muster::comm
