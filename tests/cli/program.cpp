#include "program.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace spillway::cli {
namespace {

struct Pipe {
  Pipe() {
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  }
  ~Pipe() {
    close(ends[0]);
    if (ends[1] >= 0) close(ends[1]);
  }
  std::array<int, 2> ends{};
};

/// Starts the command; `redirect` says where its streams go.
template <class Redirect>
pid_t spawn(const std::vector<std::string>& command, Redirect&& redirect) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  redirect(actions);
  std::vector<char*> arguments;
  for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_t child = 0;
  const int failure = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failure != 0) throw std::system_error(failure, std::generic_category(), command[0]);
  return child;
}

int exit_code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace

Outcome run_command(const std::vector<std::string>& command) {
  Pipe out, err;
  const pid_t child = spawn(command, [&](posix_spawn_file_actions_t& actions) {
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err.ends[1], STDERR_FILENO);
  });
  for (Pipe* pipe : {&out, &err}) {
    close(pipe->ends[1]);
    pipe->ends[1] = -1;
  }

  Outcome outcome;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  std::array<pollfd, 2> watched{pollfd{out.ends[0], POLLIN, 0}, pollfd{err.ends[0], POLLIN, 0}};
  while (watched[0].fd >= 0 || watched[1].fd >= 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(child, SIGKILL);
      break;
    }
    if (poll(watched.data(), watched.size(), 1000) <= 0) continue;
    for (auto& one : watched) {
      if (one.fd < 0 || one.revents == 0) continue;
      std::array<char, 4096> piece{};
      const ssize_t bytes = read(one.fd, piece.data(), piece.size());
      if (bytes > 0) {
        (one.fd == out.ends[0] ? outcome.out : outcome.err)
            .append(piece.data(), static_cast<std::size_t>(bytes));
      } else {
        one.fd = -1;
      }
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  outcome.exit_code = exit_code_of(status);
  return outcome;
}

Interrupted interrupt_command(const std::vector<std::string>& command, int signal_number,
                              double after_seconds) {
  const pid_t child = spawn(command, [](posix_spawn_file_actions_t& actions) {
    for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
      posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_RDWR, 0);
    }
  });
  std::this_thread::sleep_for(std::chrono::duration<double>(after_seconds));
  const auto begin = std::chrono::steady_clock::now();
  kill(child, signal_number);
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() - begin > std::chrono::minutes(1)) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return {exit_code_of(status),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

Outcome run_program(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{SPILLWAY_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_command(command);
}

Scratch::Scratch() {
  std::string name = SPILLWAY_SCRATCH "/scratch-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
  root_ = name;
}

Scratch::~Scratch() {
  std::error_code ignored;
  std::filesystem::remove_all(root_, ignored);
}

std::string Scratch::write(const std::string& name, const std::string& text) const {
  std::ofstream file(root_ / name, std::ios::binary);
  file << text;
  if (!file.flush()) throw std::runtime_error("cannot write " + path(name));
  return path(name);
}

std::vector<std::string> Scratch::names() const {
  std::vector<std::string> all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root_))
    all.push_back(entry.path().string());
  std::sort(all.begin(), all.end());
  return all;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string example(const std::string& name) {
  return std::string(SPILLWAY_EXAMPLES) + "/" + name;
}

std::string sample_text() {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "The water that " + std::to_string(i * i % 97) +
            " rivers carry down does not fit behind the dam;\n" + "what the " + std::to_string(i) +
            "th gate lets go, the valley keeps until it is wanted again.\n";
  }
  return text;
}

}  // namespace spillway::cli
