#pragma once
// What happens when the user presses Ctrl-C, or the system asks the program to end: it ends at once, as the
// signal says, and what is unfinished is taken back first.
#include <string>

namespace spillway::cli {

/// From now on SIGINT, SIGTERM and SIGHUP clean up and then do what they always do. What the caller ignores
/// (nohup) stays ignored. SIGXFSZ is ignored: the write reports it.
void clean_up_when_interrupted();

/// A line without an end stands on the terminal: a signal ends it, so that the shell's prompt gets its own.
void set_line_open(bool open);

/// While it lives, a signal removes this file: it is half written.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& path);
  ~UnfinishedFile();
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;
};

/// While it lives, a signal only asks for an end, for work that can end well within a moment; one more, half a
/// second later or after that, does what it always does. (A wrapper such as timeout sends each one twice.) One
/// at a time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// The signal that came, 0 for none.
  int signal_number() const;
};

}  // namespace spillway::cli
