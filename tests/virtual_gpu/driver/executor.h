// Runs the work of all streams: each stream first in first out, across streams as far as events and the legacy default
// stream allow, in the configured order.
//
// Callers: streams, copies, launches and graphs submit; synchronising calls wait. Two lanes, one thread each: the
// device (kernels, copies, events) and the host (cuLaunchHostFunc and stream callbacks, which may block without
// stopping the device). The threads block all signals but those of their own faults, never touch Python, and are left
// behind at exit on purpose. Invariant: everything here is called, and all queues are changed, with the driver's lock
// held; work runs without it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "../core/machine.h"
#include "cuda_api.h"

namespace vgpu {

// How a piece of work ended.
struct Result {
    CUresult code = CUDA_SUCCESS;
    std::string text;
};

struct Queue;

// A piece of work, by its place in its queue.
struct Ticket {
    std::shared_ptr<Queue> queue;
    uint64_t number = 0;
    bool done() const;
};

struct Task {
    std::function<Result()> work;
    std::vector<Ticket> after;   // besides what stands before it in its own queue
    bool host = false;           // host lane
    bool always = false;         // runs even if the process has failed: events, callbacks
    std::function<bool()> held;  // not to be started while this is true
    uint64_t sequence = 0;
};

struct Queue {
    std::deque<Task> tasks;
    uint64_t submitted = 0, finished = 0;
    bool running = false;
    Ticket last(const std::shared_ptr<Queue>& self) const { return {self, submitted}; }
};

class Executor {
public:
    explicit Executor(std::mutex& mutex) : mutex_(mutex) {}
    Ticket submit(const std::shared_ptr<Queue>& queue, Task task);
    // Gives the lock back while waiting.
    void wait(std::unique_lock<std::mutex>& lock, const Ticket& ticket);
    void wait(std::unique_lock<std::mutex>& lock, const std::vector<Ticket>& tickets);
    // Something that tasks wait for has changed.
    void notify() { changed_.notify_all(); }
    std::function<void()> when_idle;  // called with the lock held, some hundred times a second

private:
    void start();
    void serve(bool host);
    bool take(bool host, std::shared_ptr<Queue>& queue, Task& task, bool& held);
    bool gathering() const;

    std::mutex& mutex_;
    std::condition_variable changed_;
    std::vector<std::shared_ptr<Queue>> busy_;  // that have work
    std::mt19937_64 random_;
    bool started_ = false;
    unsigned waiting_ = 0;
    uint64_t sequence_ = 0;
    int64_t last_submit_ns_ = 0;
};

int64_t now_ns();  // CLOCK_MONOTONIC

// True in a host function or callback: no driver call is allowed there.
bool in_callback();
// Marks the calling thread as being in a callback for as long as it lives.
class CallbackScope {
public:
    CallbackScope();
    ~CallbackScope();
};

}  // namespace vgpu
