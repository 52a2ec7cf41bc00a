#pragma once
// Runs Muster's programs as a user would and looks at what they leave behind.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "comm/base/deadline.h"
#include "comm/base/error.h"
#include "comm/base/subprocess.h"

extern char** environ;

namespace muster::e2e {

namespace fs = std::filesystem;

inline const std::string kPrograms = MUSTER_PROGRAMS;
inline const std::string kMuster = kPrograms + "/muster";
inline constexpr milliseconds kPatience(40'000);

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// The lines that say how it ended.
inline std::vector<std::string> final_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("muster: ")) lines.push_back(line);
  }
  return lines;
}

// Living processes whose environment holds this entry; a zombie has no environment any more.
inline std::vector<pid_t> processes_with(const std::string& entry) {
  std::vector<pid_t> found;
  for (const auto& process : fs::directory_iterator("/proc")) {
    const std::string name = process.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string environment = '\0' + read_file(process.path() / "environ");
    if (environment.find('\0' + entry + '\0') != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

// One command in a folder of its own, found again by a mark in its environment.
class Job {
 public:
  Job() {
    static int number = 0;
    mark_ = fmt::format("MUSTER_TEST_MARK={}-{}", getpid(), ++number);
    folder_ = fs::temp_directory_path() / fmt::format("muster-e2e-{}-{}", getpid(), number);
    fs::create_directories(folder_);
    for (char** entry = environ; *entry; ++entry) {
      const std::string text = *entry;
      const std::string name = text.substr(0, text.find('='));
      // The test may itself run under a launcher.
      if (!name.starts_with("MUSTER_") && !name.starts_with("OMPI_") && !name.starts_with("SLURM_") && !name.starts_with("PMI"))
        environment_[name] = text.substr(name.size() + 1);
    }
    set("MUSTER_WORKER", kPrograms + "/fake_worker");
    set("MUSTER_NVML_LIBRARY", "/nowhere");
    set(mark_.substr(0, mark_.find('=')), mark_.substr(mark_.find('=') + 1));
  }
  ~Job() {
    for (const pid_t pid : left()) kill(pid, SIGKILL);
    std::error_code error;
    fs::remove_all(folder_, error);
  }

  void set(const std::string& name, const std::string& value) { environment_[name] = value; }
  fs::path folder() const { return folder_; }
  fs::path run_folder() const { return folder_ / "run"; }
  fs::path log(int rank) const { return run_folder() / "logs" / fmt::format("rank-{}.log", rank); }

  void begin(std::vector<std::string> argv) {
    Subprocess child;
    child.argv = std::move(argv);
    child.environment = environment_;
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC), out = create("out"), err = create("err");
    child.descriptors = {{null, 0}, {out, 1}, {err, 2}};
    pid_ = start(child);
    for (const int fd : {null, out, err}) close(fd);
  }
  // Its exit code; -1 where it had to be killed.
  int end() {
    const auto deadline = Deadline::after(kPatience);
    while (!deadline.expired()) {
      if (const auto ending = ending_of(pid_)) return ending->code;
      std::this_thread::sleep_for(milliseconds(5));
    }
    kill(-pid_, SIGKILL);
    return -1;
  }
  int run(std::vector<std::string> argv) {
    begin(std::move(argv));
    return end();
  }

  pid_t pid() const { return pid_; }
  std::string out() const { return read_file(folder_ / "out"); }
  std::string err() const { return read_file(folder_ / "err"); }

  // Until the text is on stderr.
  bool wait_for(const std::string& text) const {
    const auto deadline = Deadline::after(kPatience);
    while (!deadline.expired()) {
      if (err().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(milliseconds(5));
    }
    return false;
  }
  // Processes of this job that are left; those that are just ending get three seconds.
  std::vector<pid_t> left() const {
    const auto deadline = Deadline::after(milliseconds(3000));
    auto found = processes_with(mark_);
    while (!found.empty() && !deadline.expired()) {
      std::this_thread::sleep_for(milliseconds(20));
      found = processes_with(mark_);
    }
    return found;
  }
  // The process of this job with that program name and rank.
  pid_t find(const std::string& program, int rank) const {
    for (const pid_t pid : processes_with(mark_)) {
      const auto folder = fs::path("/proc") / std::to_string(pid);
      std::error_code error;
      if (fs::read_symlink(folder / "exe", error).filename() != program) continue;
      const std::string environment = '\0' + read_file(folder / "environ");
      for (const char* name : {"MUSTER_RANK", "OMPI_COMM_WORLD_RANK"}) {
        if (environment.find(fmt::format("{}{}={}{}", '\0', name, rank, '\0')) != std::string::npos) return pid;
      }
    }
    return -1;
  }

 private:
  int create(const char* name) const { return open((folder_ / name).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); }

  std::string mark_;
  fs::path folder_;
  std::map<std::string, std::string> environment_;
  pid_t pid_ = -1;
};

inline std::string find_program(const std::string& name) {
  std::stringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + name).c_str(), X_OK) == 0) return folder + "/" + name;
  }
  return "";
}

}  // namespace muster::e2e
