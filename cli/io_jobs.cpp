#include "io_jobs.h"

#include "../core/error.h"
#include "interrupt.h"
#include "slices.h"
#include "text.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace spillway::cli {
namespace {

using aio::Measurement;
using aio::Sample;
using aio::Traffic;
using Clock = std::chrono::steady_clock;
using nlohmann::json;

/// From the question on: every process has read it by then.
constexpr auto kStartDelay = std::chrono::milliseconds(20);

// Messages, each after its kind and its length. To a process: a Question. From it: 'p' a share that is done,
// 'a' an answer, 'e' an error as JSON.
struct Header {
  char kind = 0;
  std::uint32_t bytes = 0;
};
struct Question {
  bool verify = false;  // else a slice
  aio::MeasureSetting setting;
  Traffic traffic = Traffic::read;
  double seconds = 0;
  Clock::time_point start{};  // of one clock for all processes
};
struct Figures {
  double seconds = 0, cpu_seconds = 0;
  std::int64_t read_bytes = 0, written_bytes = 0, operations = 0, written_in_all = 0;
  aio::LatencyHistogram latency;
};
static_assert(std::is_trivially_copyable_v<Question> && std::is_trivially_copyable_v<Figures>);

template <class T>
std::string bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T value_of(std::string_view bytes) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (bytes.size() < sizeof(T)) throw std::logic_error("a message between processes is too short");
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

std::string framed(char kind, std::string_view message) {
  return bytes_of(Header{kind, static_cast<std::uint32_t>(message.size())}).append(message);
}

/// False where the other end is gone.
bool send_all(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool receive_exactly(int socket, char* to, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::recv(socket, to, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

json error_json(std::string_view what, int kind, std::string_view hint) {
  return {{"what", what}, {"kind", kind}, {"hint", hint}};
}
constexpr int kBugKind = -1;
[[noreturn]] void rethrow(const json& error) {
  const int kind = error.at("kind");
  const std::string what = error.at("what");
  if (kind == kBugKind) throw std::logic_error(what);
  throw Error(static_cast<ErrorKind>(kind), what, {.hint = error.at("hint").get<std::string>()});
}

// ---------------------------------------------------------------------------------- in each process

aio::Volume make_volume(const IoTask& task) {
  if (task.existing) {
    std::vector<aio::File> files;
    for (const auto& path : task.paths) files.push_back(aio::File::open_existing(path, task.file));
    return aio::Volume::over(std::move(files));
  }
  std::vector<aio::VolumePath> paths;
  for (std::size_t i = 0; i < task.paths.size(); ++i) {
    paths.push_back(
        {.directory = task.paths[i], .bandwidth = i < task.bandwidth.size() ? task.bandwidth[i] : 0});
  }
  return aio::Volume::create(paths, task.bytes, {.file = task.file});
}

json report_json(const aio::RingReport& r) {
  return {{"engine", static_cast<int>(r.engine)},
          {"single_issuer", r.single_issuer},
          {"deferred_task_run", r.deferred_task_run},
          {"sqpoll", r.sqpoll},
          {"iopoll", r.iopoll},
          {"registered_files", r.registered_files},
          {"registered_memory", r.registered_memory},
          {"notes", r.notes}};
}

aio::RingReport report_of(const json& r) {
  return {.engine = static_cast<aio::IoEngine>(r.at("engine").get<int>()),
          .single_issuer = r.at("single_issuer"),
          .deferred_task_run = r.at("deferred_task_run"),
          .sqpoll = r.at("sqpoll"),
          .iopoll = r.at("iopoll"),
          .registered_files = r.at("registered_files"),
          .registered_memory = r.at("registered_memory"),
          .notes = r.at("notes").get<std::vector<std::string>>()};
}

void work(const IoTask& task, int socket) {
  const aio::Volume volume = make_volume(task);
  Measurement measurement(volume, task.transfer_bytes);
  Clock::time_point last_said{};
  const auto progress = [&](double done) {
    if (Clock::now() - last_said < std::chrono::milliseconds(50)) return;
    last_said = Clock::now();
    send_all(socket, framed('p', bytes_of(done)));
  };
  measurement.prepare(task.existing, progress, task.only_first ? task.first : Traffic::read);
  measurement.open(task.setting);
  const json ready{
      {"bytes", volume.size()}, {"notes", volume.notes()}, {"report", report_json(measurement.report())}};
  send_all(socket, framed('a', ready.dump(-1, ' ', false, json::error_handler_t::replace)));

  Question question;
  while (receive_exactly(socket, reinterpret_cast<char*>(&question), sizeof question)) {
    if (question.verify) {
      measurement.verify();
      send_all(socket, framed('a', ""));
      continue;
    }
    measurement.open(question.setting);
    std::this_thread::sleep_until(question.start);
    const Sample sample = measurement.run(question.setting, question.traffic, question.seconds);
    std::string answer = bytes_of(Figures{.seconds = sample.seconds,
                                          .cpu_seconds = sample.cpu_seconds,
                                          .read_bytes = sample.read_bytes,
                                          .written_bytes = sample.written_bytes,
                                          .operations = sample.operations,
                                          .written_in_all = measurement.written_bytes(),
                                          .latency = sample.latency});
    for (const std::int64_t piece : sample.course) answer += bytes_of(piece);
    send_all(socket, framed('a', answer));
  }
}

void work_and_report(const IoTask& task, int socket) noexcept {
  json error;
  try {
    work(task, socket);
    return;
  } catch (const Error& failure) {
    error = error_json(failure.what(), static_cast<int>(failure.kind()), failure.detail().hint);
  } catch (const std::bad_alloc&) {
    error = error_json("out of memory", static_cast<int>(ErrorKind::resources),
                       "fewer --jobs, a smaller --queue-depth or a smaller --block-size take less");
  } catch (const std::exception& failure) {
    error = error_json(failure.what(), kBugKind, "");
  }
  send_all(socket, framed('e', error.dump(-1, ' ', false, json::error_handler_t::replace)));
}

Sample sample_of(std::string_view answer, std::int64_t& written_in_all) {
  const auto figures = value_of<Figures>(answer);
  Sample sample{.seconds = figures.seconds,
                .read_bytes = figures.read_bytes,
                .written_bytes = figures.written_bytes,
                .operations = figures.operations,
                .cpu_seconds = figures.cpu_seconds,
                .latency = figures.latency};
  for (answer.remove_prefix(sizeof figures); !answer.empty(); answer.remove_prefix(sizeof(std::int64_t)))
    sample.course.push_back(value_of<std::int64_t>(answer));
  written_in_all = figures.written_in_all;
  return sample;
}

}  // namespace

IoJobs::IoJobs(const IoTask& task, int jobs) : setting_(task.setting) {
  flush();  // else every process has what is not written yet, too
  try {
    for (int job = 0; job < jobs; ++job) start(task);
  } catch (...) {
    end();
    throw;
  }
}

void IoJobs::start(const IoTask& task) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(ErrorKind::resources, "a process cannot be spoken with",
                {.operation = "socketpair", .error_number = errno, .hint = "fewer --jobs need less"});
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) {
    const int failure = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    throw Error(ErrorKind::resources,
                fmt::format("process {} of the measurement cannot start", jobs_.size() + 1),
                {.operation = "fork", .error_number = failure, .hint = "fewer --jobs need less"});
  }
  if (process == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // A terminal sends them to all its processes: what they mean is for the program itself to say.
    for (const int from_terminal : {SIGINT, SIGHUP}) std::signal(from_terminal, SIG_IGN);
    if (::getppid() != parent) ::_exit(0);
    set_line_open(false);
    for (const Job& other : jobs_) ::close(other.socket);
    ::close(ends[0]);
    work_and_report(task, ends[1]);
    ::_exit(0);  // what the program itself would do at its end is not for this process
  }
  ::close(ends[1]);
  jobs_.push_back({.process = process, .socket = ends[0]});
}

IoJobs::~IoJobs() {
  end();
}

void IoJobs::end() noexcept {
  for (const Job& job : jobs_) {
    ::close(job.socket);
    if (job.process > 0) ::kill(job.process, SIGKILL);
  }
  for (const Job& job : jobs_) {
    while (job.process > 0 && ::waitpid(job.process, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  jobs_.clear();
}

void IoJobs::ask(std::string_view question) {
  for (Job& job : jobs_) {
    job.has_answer = false;
    job.progress = 0;
    send_all(job.socket, question);  // one that is gone is noticed by who waits for its answer
  }
}

void IoJobs::await(const std::function<void()>& meanwhile) {
  const auto waits = [](const Job& job) { return !job.has_answer; };
  while (std::any_of(jobs_.begin(), jobs_.end(), waits)) {
    std::vector<pollfd> watched;
    for (const Job& job : jobs_) watched.push_back({waits(job) ? job.socket : -1, POLLIN, 0});
    ::poll(watched.data(), watched.size(), 100);
    for (std::size_t job = 0; job < watched.size(); ++job) {
      if (watched[job].revents != 0) receive(job);
    }
    if (meanwhile) meanwhile();
  }
}

void IoJobs::receive(std::size_t number) {
  Job& job = jobs_[number];
  char piece[65536];
  const ssize_t got = ::recv(job.socket, piece, sizeof piece, MSG_DONTWAIT);
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (got <= 0) {
    int status = 0;
    ::waitpid(std::exchange(job.process, -1), &status, 0);
    throw Error(ErrorKind::resources,
                WIFSIGNALED(status) ? fmt::format("process {} of the measurement was ended by signal {}",
                                                  number + 1, WTERMSIG(status))
                                    : fmt::format("process {} of the measurement has ended", number + 1),
                {.hint = "the system may have run out of memory; its log (dmesg) says more"});
  }
  job.received.append(piece, static_cast<std::size_t>(got));
  while (job.received.size() >= sizeof(Header)) {
    const auto header = value_of<Header>(job.received);
    if (job.received.size() < sizeof header + header.bytes) break;
    std::string message = job.received.substr(sizeof header, header.bytes);
    job.received.erase(0, sizeof header + header.bytes);
    take(number, header.kind, std::move(message));
  }
}

void IoJobs::take(std::size_t number, char kind, std::string message) {
  Job& job = jobs_[number];
  switch (kind) {
    case 'p':
      job.progress = value_of<double>(message);
      break;
    case 'a':
      job.has_answer = true;
      job.answer = std::move(message);
      break;
    default:
      rethrow(json::parse(message));
  }
}

IoReady IoJobs::prepare(const Progress& progress) {
  await([&] {
    double done = 1;
    for (const Job& job : jobs_) done = std::min(done, job.has_answer ? 1.0 : job.progress);
    if (progress) progress(done);
  });
  IoReady ready;
  for (const Job& job : jobs_) {
    const json answer = json::parse(job.answer);
    ready.bytes = answer.at("bytes");
    if (&job == &jobs_.front()) ready.report = report_of(answer.at("report"));
    for (const std::string note : answer.at("notes")) {
      if (std::find(ready.notes.begin(), ready.notes.end(), note) == ready.notes.end())
        ready.notes.push_back(note);
    }
  }
  return ready;
}

std::vector<Sample> IoJobs::measure(Traffic traffic, double seconds, const Progress& progress) {
  return measure(setting_, traffic, seconds, progress);
}

std::vector<Sample> IoJobs::measure(const aio::MeasureSetting& setting, Traffic traffic, double seconds,
                                    const Progress& progress) {
  const Clock::time_point start = Clock::now() + (jobs_.size() > 1 ? kStartDelay : Clock::duration{});
  ask(bytes_of(Question{.setting = setting, .traffic = traffic, .seconds = seconds, .start = start}));
  await([&] {
    const double done = std::chrono::duration<double>(Clock::now() - start).count() / seconds;
    if (progress) progress(std::clamp(done, 0.0, 1.0));
  });
  std::vector<Sample> samples;
  for (Job& job : jobs_) samples.push_back(sample_of(job.answer, job.written_bytes));
  return samples;
}

void IoJobs::verify() {
  ask(bytes_of(Question{.verify = true}));
  await({});
}

std::int64_t IoJobs::written_bytes() const {
  std::int64_t bytes = 0;
  for (const Job& job : jobs_) bytes += job.written_bytes;
  return bytes;
}

Sample in_all(const std::vector<Sample>& samples) {
  Sample all;
  for (const Sample& sample : samples) {
    all.seconds = std::max(all.seconds, sample.seconds);
    all.read_bytes += sample.read_bytes;
    all.written_bytes += sample.written_bytes;
    all.operations += sample.operations;
    all.cpu_seconds += sample.cpu_seconds;
    all.latency.add(sample.latency);
    all.course.resize(std::max(all.course.size(), sample.course.size()));
    for (std::size_t i = 0; i < sample.course.size(); ++i) all.course[i] += sample.course[i];
  }
  return all;
}

double spread_of(const Sample& sample, double seconds) {
  constexpr std::size_t kLongest = 5, kWanted = 8, kLeast = 4;
  // Only the pieces that were full of transfers.
  const std::size_t whole =
      std::min(sample.course.size(), static_cast<std::size_t>(seconds / aio::course_seconds + 1e-6));
  if (whole < kLeast) return -1;
  const std::size_t each = std::clamp<std::size_t>(whole / kWanted, 1, kLongest);
  std::vector<double> speeds;
  for (std::size_t i = 0; i + each <= whole; i += each) {
    double bytes = 0;
    for (std::size_t k = i; k < i + each; ++k) bytes += static_cast<double>(sample.course[k]);
    speeds.push_back(bytes);
  }
  const double median = quantile(speeds, 0.5);
  return median > 0 ? (quantile(speeds, 0.75) - quantile(speeds, 0.25)) / median : -1;
}

}  // namespace spillway::cli
