#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace muster::launcher {

// logs/rank-R.log of a run, and what of it a person sees.
//
// Every line a worker prints goes to the file, with its time. Rank 0's stdout is passed on byte by byte, so that a live line (\r)
// works; of a line that was overwritten only the last state is kept in the file. Of stderr, rank 0's lines and everybody's warnings
// are shown; errors are not, since the leader shows the first cause.
// Threads: one. Lines that come before open() are kept for it.
class RankLog {
 public:
  explicit RankLog(int rank) : rank_(rank) {}
  ~RankLog();
  RankLog(const RankLog&) = delete;
  RankLog& operator=(const RankLog&) = delete;

  // InputError where the file cannot be made.
  void open(const std::string& run_dir, int rank);
  const std::string& path() const { return path_; }

  void add_stdout(std::string_view bytes);
  void add_stderr(std::string_view bytes);
  void flush();  // what has no newline yet

 private:
  void add(std::string& pending, std::string_view bytes, bool is_stderr);
  void write_line(const std::string& line);
  void show_stderr(const std::string& line) const;

  int rank_;
  std::string path_, stdout_pending_, stderr_pending_, before_open_;
  std::FILE* file_ = nullptr;
};

}  // namespace muster::launcher
