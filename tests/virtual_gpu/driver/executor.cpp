// The two lanes (executor.h). Invariant: a task starts only when the tasks before it in its queue and all that it comes
// after have finished, and finished numbers only grow.
#include "executor.h"

#include <pthread.h>
#include <csignal>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "state.h"

namespace vgpu {
namespace {

// With an order other than forward, how long work is gathered so that there is something to reorder.
constexpr int64_t GATHER_NS = 300'000;
// How often a lane looks at what it cannot be woken for: a held task, the control file.
constexpr auto GLANCE = std::chrono::milliseconds(2);

thread_local int callback_depth = 0;

// Want of memory in a task must not end its lane, and with it the process.
Result worked(Task& task) {
    try {
        return task.work();
    } catch (const std::bad_alloc&) {
        return {CUDA_ERROR_OUT_OF_MEMORY, "no memory of the host is left for work that was submitted"};
    }
}

}  // namespace

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

bool in_callback() { return callback_depth > 0; }
CallbackScope::CallbackScope() { ++callback_depth; }
CallbackScope::~CallbackScope() { --callback_depth; }

bool Ticket::done() const { return !queue || queue->finished >= number; }

void Executor::start() {
    started_ = true;
    random_.seed(driver().configuration.options.seed);
    sigset_t all, before;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited by the threads
    for (const bool host : {false, true}) std::thread([this, host] { serve(host); }).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Ticket Executor::submit(const std::shared_ptr<Queue>& queue, Task task) {
    if (!started_) start();
    task.sequence = ++sequence_;
    std::erase_if(task.after, [](const Ticket& ticket) { return ticket.done(); });
    if (queue->tasks.empty() && !queue->running) busy_.push_back(queue);
    queue->tasks.push_back(std::move(task));
    last_submit_ns_ = now_ns();
    const Ticket ticket{queue, ++queue->submitted};
    changed_.notify_all();
    return ticket;
}

void Executor::wait(std::unique_lock<std::mutex>& lock, const Ticket& ticket) {
    if (ticket.done()) return;
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return ticket.done(); });
    --waiting_;
}

void Executor::wait(std::unique_lock<std::mutex>& lock, const std::vector<Ticket>& tickets) {
    for (const Ticket& ticket : tickets) wait(lock, ticket);
}

bool Executor::gathering() const {
    return driver().configuration.options.order != Order::forward && !waiting_ &&
           now_ns() - last_submit_ns_ < GATHER_NS;
}

// Chooses the next task of a lane; `held` tells that one is being held back.
bool Executor::take(bool host, std::shared_ptr<Queue>& queue, Task& task, bool& held) {
    std::vector<std::shared_ptr<Queue>> ready;
    for (const auto& candidate : busy_) {
        if (candidate->running || candidate->tasks.empty()) continue;
        const Task& head = candidate->tasks.front();
        if (head.host != host || !std::all_of(head.after.begin(), head.after.end(), std::mem_fn(&Ticket::done)))
            continue;
        if (head.held && !driver().error && head.held()) held = true;
        else ready.push_back(candidate);
    }
    if (ready.empty() || (!host && gathering())) return false;
    const auto earlier = [](const auto& a, const auto& b) {
        return a->tasks.front().sequence < b->tasks.front().sequence;
    };
    const Order order = driver().configuration.options.order;
    if (order == Order::forward) queue = *std::min_element(ready.begin(), ready.end(), earlier);
    else if (order == Order::reverse) queue = *std::max_element(ready.begin(), ready.end(), earlier);
    else {
        std::sort(ready.begin(), ready.end(), earlier);  // what the seed means must not depend on addresses
        queue = ready[random_() % ready.size()];
    }
    task = std::move(queue->tasks.front());
    queue->tasks.pop_front();
    queue->running = true;
    return true;
}

void Executor::serve(bool host) {
    std::unique_lock lock(mutex_);
    for (;;) {
        std::shared_ptr<Queue> queue;
        Task task;
        bool held = false;
        if (!take(host, queue, task, held)) {
            const bool glance = held || (!host && (when_idle || !busy_.empty()));
            if (!host && when_idle) when_idle();
            if (!glance) changed_.wait(lock);
            else if (!host && gathering()) changed_.wait_for(lock, std::chrono::nanoseconds(GATHER_NS));
            else changed_.wait_for(lock, GLANCE);
            continue;
        }
        if (task.always || !driver().error) {
            lock.unlock();
            const Result result = worked(task);
            task.work = nullptr;  // what it owns goes before it counts as finished
            lock.lock();
            if (result.code) driver().fail(result.code, result.text);
        }
        queue->running = false;
        ++queue->finished;
        if (queue->tasks.empty()) std::erase(busy_, queue);
        changed_.notify_all();
    }
}

}  // namespace vgpu
