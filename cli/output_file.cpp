#include "output_file.h"

#include "../core/error.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace spillway::cli {
namespace {

Error cannot(const std::string& what, const std::string& operation, const std::string& path, int number) {
  return Error(ErrorKind::io, what,
               {.operation = operation,
                .path = path,
                .error_number = number,
                .hint = "name a file that can be written"});
}

/// errno, 0 where a file can be created there; it is gone again before this returns.
int try_to_create_in(const std::string& directory) {
  int file = open(directory.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0 &&
      (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {  // a file system without O_TMPFILE
    std::string name = directory + "/.spillway-XXXXXX";
    file = mkstemp(name.data());
    if (file >= 0) unlink(name.c_str());
  }
  if (file < 0) return errno;
  close(file);
  return 0;
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string_view flag) : path_(std::move(path)) {
  if (path_.empty()) return;
  const std::string what = fmt::format("{}: cannot write this file", flag);
  struct stat status {};
  if (stat(path_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) throw cannot(what, "create", path_, EISDIR);
    if (access(path_.c_str(), W_OK) != 0) throw cannot(what, "open", path_, errno);
    directly_ = !S_ISREG(status.st_mode);
    if (directly_) return;
  } else if (errno != ENOENT) {
    throw cannot(what, "create", path_, errno);
  }
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  if (const int number = try_to_create_in(parent.empty() ? "." : parent); number != 0) {
    throw cannot(what, "create", path_, number);
  }
}

void OutputFile::replace(const std::function<void(const std::string&)>& write) const {
  if (directly_) return write(path_);
  const std::string name = fmt::format("{}.partial-{}", path_, getpid());
  try {
    write(name);
    if (rename(name.c_str(), path_.c_str()) != 0)
      throw cannot("cannot put the file in its place", "rename", path_, errno);
  } catch (...) {
    unlink(name.c_str());
    throw;
  }
}

void OutputFile::replace_with(std::string_view text) const {
  replace([&](const std::string& name) {
    std::FILE* file = std::fopen(name.c_str(), "wb");
    if (file == nullptr) throw cannot("cannot write the file", "open", name, errno);
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    const int number = errno;
    const bool closed = std::fclose(file) == 0;
    if (!written || !closed) throw cannot("cannot write the file", "write", name, written ? errno : number);
  });
}

}  // namespace spillway::cli
