#include "sharding/pipeline/schedule/generators.h"

#include <algorithm>
#include <cstdint>

#include <fmt/ranges.h>

#include "comm/base/error.h"
#include "sharding/pipeline/schedule/complete.h"

namespace muster::sharding::pipeline {
namespace {

using Actions = std::vector<Action>;

Action on_chunk(const Schedule& s, Kind kind, int rank, int chunk, int micro_batch) {
  return {kind, chunk * s.ranks + rank, micro_batch};
}

void fill_gpipe(Schedule& s) {
  for (int rank = 0; rank < s.ranks; ++rank) {
    for (int chunk = 0; chunk < s.chunks; ++chunk)
      for (int i = 0; i < s.micro_batches; ++i) s.actions[rank].push_back(on_chunk(s, Kind::kForward, rank, chunk, i));
    for (int chunk = s.chunks - 1; chunk >= 0; --chunk)
      for (int i = 0; i < s.micro_batches; ++i) s.actions[rank].push_back(on_chunk(s, Kind::kBackward, rank, chunk, i));
  }
}

// Sizes of the rounds: at least `ranks` micro-batches each (else ranks would wait for each other between chunks), longer ones
// first, so that a backward never runs ahead of its own forward.
std::vector<int> round_sizes(int ranks, int micro_batches) {
  const int rounds = std::max(1, micro_batches / ranks);
  std::vector<int> sizes(rounds, micro_batches / rounds);
  for (int i = 0; i < micro_batches % rounds; ++i) ++sizes[i];
  return sizes;
}

// The order in which each rank walks its (chunk, micro-batch) cells: a round through every chunk, then the next round.
Actions cells_in_rounds(const Schedule& s, const std::vector<int>& rounds, Kind kind, int rank) {
  Actions out;
  int first = 0;
  for (const int size : rounds) {
    for (int step = 0; step < s.chunks; ++step) {
      const int chunk = kind == Kind::kForward ? step : s.chunks - 1 - step;
      for (int i = 0; i < size; ++i) out.push_back(on_chunk(s, kind, rank, chunk, first + i));
    }
    first += size;
  }
  return out;
}

// Forwards before the first backward. With several chunks a rank is two ahead of the rank after it, so that messages travel
// while it works; one would do where messages took no time, and keep fewer activations.
int warm_up(const Schedule& s, int first_round, int rank) {
  const int behind = s.ranks - 1 - rank;
  const int wanted = s.chunks == 1 ? behind : (s.chunks - 1) * first_round + 2 * behind;
  return std::min(wanted, s.chunks * s.micro_batches);
}

void fill_one_forward_one_backward(Schedule& s) {
  const auto rounds = round_sizes(s.ranks, s.micro_batches);
  for (int rank = 0; rank < s.ranks; ++rank) {
    const Actions forward = cells_in_rounds(s, rounds, Kind::kForward, rank);
    const Actions backward = cells_in_rounds(s, rounds, Kind::kBackward, rank);
    const size_t ahead = warm_up(s, rounds[0], rank);
    auto& out = s.actions[rank];
    out.assign(forward.begin(), forward.begin() + ahead);
    for (size_t i = 0; i < backward.size(); ++i) {
      if (ahead + i < forward.size()) out.push_back(forward[ahead + i]);
      out.push_back(backward[i]);
    }
  }
}

struct Generator {
  const char* name;
  int default_chunks;
  bool any_chunks;
  void (*fill)(Schedule&);
};

constexpr Generator kGenerators[] = {
    {"gpipe", 1, true, fill_gpipe},
    {"1f1b", 1, true, fill_one_forward_one_backward},
    {"interleaved-1f1b", 2, true, fill_one_forward_one_backward},
    {"zbv", 2, false, fill_zero_bubble_v},
};

const Generator& generator_named(const std::string& name) {
  for (const Generator& g : kGenerators)
    if (name == g.name) return g;
  refuse("schedule: found '{}', wanted {}", name, fmt::join(schedule_names(), ", "));
}

}  // namespace

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Generator& g : kGenerators) names.push_back(g.name);
  return names;
}

std::vector<int> looped_placement(int ranks, int chunks) {
  std::vector<int> out(static_cast<size_t>(ranks) * chunks);
  for (size_t stage = 0; stage < out.size(); ++stage) out[stage] = static_cast<int>(stage) % ranks;
  return out;
}

std::vector<int> v_placement(int ranks) {
  std::vector<int> out(2 * static_cast<size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) out[rank] = out[2 * ranks - 1 - rank] = rank;
  return out;
}

void check_size(int ranks, int micro_batches, int chunks) {
  if (ranks < 1 || ranks > kMostRanks) refuse("pipeline ranks: found {}, wanted 1 to {}", ranks, kMostRanks);
  if (micro_batches < 1) refuse("micro-batches: found {}, wanted at least 1", micro_batches);
  if (chunks < 1) refuse("chunks: found {}, wanted at least 1", chunks);
  const int64_t stages = int64_t{ranks} * chunks;
  if (stages > kMostCells || stages * micro_batches > kMostCells) {
    refuse("schedule: found {} ranks x {} chunks x {} micro-batches, wanted at most {} in all", ranks, chunks, micro_batches,
           kMostCells);
  }
}

Schedule make_schedule(const ScheduleRequest& request) {
  const Generator& g = generator_named(request.name);
  Schedule s;
  s.name = request.name;
  s.ranks = request.ranks;
  s.micro_batches = request.micro_batches;
  s.chunks = request.chunks == 0 ? g.default_chunks : request.chunks;
  check_size(s.ranks, s.micro_batches, s.chunks);
  if (!g.any_chunks && s.chunks != g.default_chunks)
    refuse("chunks: found {}, but {} has {} a rank; leave it out or choose another schedule", s.chunks, g.name, g.default_chunks);
  s.rank_of_stage = g.any_chunks ? looped_placement(s.ranks, s.chunks) : v_placement(s.ranks);
  s.actions.resize(s.ranks);
  g.fill(s);
  complete(s);
  return s;
}

}  // namespace muster::sharding::pipeline
