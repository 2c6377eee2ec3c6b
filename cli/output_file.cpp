#include "output_file.h"

#include "../core/error.h"
#include "interrupt.h"

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

namespace fs = std::filesystem;

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

/// Where a link leads whose end does not exist yet; a path that is no link as it is.
std::string end_of_links(fs::path path) {
  std::error_code no_link;
  for (int links = 0; links < 40 && fs::is_symlink(path, no_link); ++links) {
    const fs::path next = fs::read_symlink(path, no_link);
    if (no_link) break;
    path = path.parent_path() / next;
  }
  return path.string();
}

/// One regular file, under two names perhaps, or two spellings of a path where nothing is yet.
bool same_file(const std::string& a, const std::string& b) {
  struct stat first {
  }, second{};
  const bool there = stat(a.c_str(), &first) == 0;
  if (there != (stat(b.c_str(), &second) == 0)) return false;
  if (there) return S_ISREG(first.st_mode) && first.st_dev == second.st_dev && first.st_ino == second.st_ino;
  std::error_code failure;
  // Absolute first: of a name alone there is nothing that could be made canonical.
  const fs::path one = fs::weakly_canonical(fs::absolute(a), failure);
  return !failure && one == fs::weakly_canonical(fs::absolute(b), failure) && !failure;
}

}  // namespace

OutputFile::OutputFile(std::string path, std::string_view flag) : path_(std::move(path)), flag_(flag) {
  if (path_.empty()) return;
  const std::string what = fmt::format("{}: cannot write this file", flag);
  struct stat status {};
  if (stat(path_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) throw cannot(what, "create", path_, EISDIR);
    if (access(path_.c_str(), W_OK) != 0) throw cannot(what, "open", path_, errno);
    std::error_code unnamed;  // a file that is open but has no name any more
    target_ = fs::canonical(path_, unnamed).string();
    directly_ = !S_ISREG(status.st_mode) || unnamed;
    if (directly_) {
      target_ = path_;
      return;
    }
  } else if (errno == ENOENT) {
    target_ = end_of_links(path_);
  } else {
    throw cannot(what, "create", path_, errno);
  }
  const std::string parent = fs::path(target_).parent_path().string();
  if (const int number = try_to_create_in(parent.empty() ? "." : parent); number != 0) {
    throw cannot(what, "create", path_, number);
  }
}

void OutputFile::check_apart_from(std::string_view what, const std::string& other) const {
  if (!wanted() || other.empty() || !same_file(target_, other)) return;
  throw Error(ErrorKind::usage, fmt::format("{}: {} is also {}, and would be lost", flag_, path_, what),
              {.hint = fmt::format("name another file for {}", flag_)});
}

void OutputFile::check_apart_from(const OutputFile& other) const {
  if (other.wanted()) check_apart_from("the file of " + other.flag_, other.target_);
}

void OutputFile::replace(const std::function<void(const std::string&)>& write) const {
  if (directly_) return write(target_);
  // Short, whatever the wanted name is: that may be as long as names can be.
  const std::string name =
      (fs::path(target_).parent_path() / fmt::format("spillway.partial-{}", getpid())).string();
  const UnfinishedFile unfinished(name);
  try {
    write(name);
    if (rename(name.c_str(), target_.c_str()) != 0)
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
