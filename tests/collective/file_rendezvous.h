#pragma once
// N processes of one test meet in a folder: rank r's bytes of round k are the file "k.r".

#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "comm/base/error.h"
#include "comm/rendezvous/rendezvous.h"

namespace muster::comm {

class FileRendezvous : public Rendezvous {
 public:
  // The folder exists, is empty and the same for all ranks.
  FileRendezvous(std::filesystem::path folder, int rank, int size) : folder_(std::move(folder)) {
    place_ = Place{rank, size, rank, size, 0, 1, "files"};
  }
  const Place& place() const override { return place_; }

  std::vector<std::string> exchange(std::string_view mine, Deadline deadline) override {
    const std::filesystem::path unfinished = folder_ / fmt::format("{}.{}.new", round_, place_.rank);
    std::ofstream(unfinished, std::ios::binary) << mine;
    std::filesystem::rename(unfinished, file(place_.rank));
    std::vector<std::string> all;
    for (int rank = 0; rank < place_.world_size; ++rank) all.push_back(read(rank, deadline));
    ++round_;
    return all;
  }

 private:
  std::filesystem::path file(int rank) const { return folder_ / fmt::format("{}.{}", round_, rank); }

  std::string read(int rank, Deadline deadline) const {
    while (!std::filesystem::exists(file(rank))) {
      if (deadline.expired()) throw PeerError({rank, "exchange", round_, "did not arrive before the deadline"});
      std::this_thread::sleep_for(milliseconds(1));
    }
    std::ifstream stream(file(rank), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }

  const std::filesystem::path folder_;
  Place place_;
  long long round_ = 0;
};

}  // namespace muster::comm
