#pragma once
// A file that is written at the end of a run, and checked before its begin.
#include <functional>
#include <string>
#include <string_view>

namespace spillway::cli {

class OutputFile {
 public:
  /// An empty path: no file. Throws Error (io) where the file could not be created or replaced; creates
  /// nothing.
  OutputFile(std::string path, std::string_view flag);

  bool wanted() const { return !path_.empty(); }
  const std::string& path() const { return path_; }

  /// Throws Error (usage) where the file is the same as `other`, an input that `what` describes, or as that of
  /// the other flag. Devices and pipes may be named twice.
  void check_apart_from(std::string_view what, const std::string& other) const;
  void check_apart_from(const OutputFile& other) const;

  /// Calls write(name) with the name of a file beside the wanted one, which then takes its place at once: no
  /// reader sees half of it. A link stays, and what it leads to is replaced. A device or pipe is written
  /// directly. Throws Error (io), and whatever `write`
  /// throws; nothing is left behind then.
  void replace(const std::function<void(const std::string& name)>& write) const;
  void replace_with(std::string_view text) const;

 private:
  std::string path_, flag_;
  std::string target_;  ///< where the links of path_ end
  bool directly_ = false;
};

}  // namespace spillway::cli
