#include "exchange.h"

#include <algorithm>
#include <cstring>

#include "log.h"

namespace standin {
namespace {

class Collective {
 public:
  Collective(Session* s, const Transfer& t)
      : session_(s),
        t_(t),
        ranks_(s->ranks()),
        rank_(s->rank()),
        size_(type_size(t.type)),
        send_(static_cast<const char*>(t.send)),
        recv_(static_cast<char*>(t.recv)) {}

  ncclResult_t run() {
    size_t room = session_->chunk_bytes() / size_;
    size_t per_chunk = t_.func == Func::ReduceScatter ? room / static_cast<size_t>(ranks_) : room;
    for (size_t at = 0; at < t_.count; at += per_chunk) {
      half_ = session_->next_half();
      at_ = at;
      n_ = std::min(per_chunk, t_.count - at);
      if (ncclResult_t r = chunk()) return r;
    }
    return ncclSuccess;
  }

 private:
  ncclResult_t chunk() {
    give();
    if (at_ == 0) session_->announce(signature());
    if (ncclResult_t r = session_->data_barrier()) return r;
    if (at_ == 0 && !session_->all_announced(signature())) {
      STANDIN_WARN("the ranks of a communicator called different operations; this rank called %s of %zu %s",
                   func_name(t_.func), t_.count, type_name(t_.type));
      session_->fail();
      return ncclInvalidUsage;
    }
    switch (t_.func) {
      case Func::AllReduce:
      case Func::Reduce: {
        size_t first = slice(rank_), last = slice(rank_ + 1);
        reduce_into(buffer(0) + first * size_, first, last - first);
        if (ncclResult_t r = session_->data_barrier()) return r;
        if (t_.func == Func::AllReduce || rank_ == t_.root) take(recv_ + at_ * size_, buffer(0));
        break;
      }
      case Func::ReduceScatter:
        reduce_into(recv_ + at_ * size_, n_ * static_cast<size_t>(rank_), n_);
        break;
      case Func::AllGather:
        for (int r = 0; r < ranks_; r++) take(recv_ + (t_.count * static_cast<size_t>(r) + at_) * size_, buffer(r));
        break;
      default:
        if (rank_ != t_.root)
          take(recv_ + at_ * size_, buffer(t_.root));
        else if (recv_ != send_)
          take(recv_ + at_ * size_, send_ + at_ * size_);
    }
    return ncclSuccess;
  }

  // Rank r's part of the chunk; slices begin on cache lines.
  size_t slice(int r) const {
    if (r == ranks_) return n_;
    size_t line = 64 / size_;
    return n_ * static_cast<size_t>(r) / static_cast<size_t>(ranks_) / line * line;
  }
  char* buffer(int rank) { return session_->buffer(rank, half_); }
  void take(char* to, const char* from) { memmove(to, from, n_ * size_); }

  void give() {
    if (t_.func == Func::ReduceScatter) {
      for (int to = 0; to < ranks_; to++) {
        size_t d = static_cast<size_t>(to);
        memcpy(buffer(rank_) + d * n_ * size_, send_ + (d * t_.count + at_) * size_, n_ * size_);
      }
    } else if (t_.func != Func::Broadcast || rank_ == t_.root) {
      memcpy(buffer(rank_), send_ + at_ * size_, n_ * size_);
    }
  }

  void reduce_into(char* out, size_t first, size_t n) {
    std::vector<const void*> inputs(static_cast<size_t>(ranks_));
    for (int r = 0; r < ranks_; r++) inputs[static_cast<size_t>(r)] = buffer(r) + first * size_;
    reduce(t_.type, t_.op, ranks_, inputs.data(), out, n);
  }

  Session::Signature signature() const {
    return {static_cast<int32_t>(t_.func), t_.type, static_cast<int32_t>(t_.op), t_.root, t_.count};
  }

  Session* session_;
  const Transfer& t_;
  int ranks_, rank_, half_ = 0;
  size_t size_, at_ = 0, n_ = 0;
  const char* send_;
  char* recv_;
};

// One send or receive in progress.
struct Stream {
  Session::Pipe* pipe;
  bool sending;
  int peer;
  char* at;
  size_t left;

  // Moves what can be moved now.
  bool advance(size_t room) {
    uint64_t written = pipe->written.load(), taken = pipe->taken.load();
    size_t can = std::min(left, static_cast<size_t>(sending ? room - (written - taken) : written - taken));
    if (!can) return false;
    uint64_t from = sending ? written : taken;
    for (size_t done = 0; done < can;) {
      size_t offset = static_cast<size_t>((from + done) % room), n = std::min(can - done, room - offset);
      if (sending)
        memcpy(pipe->data(offset), at, n);
      else
        memcpy(at, pipe->data(offset), n);
      at += n;
      done += n;
    }
    (sending ? pipe->written : pipe->taken).fetch_add(can);
    left -= can;
    return true;
  }
};

}  // namespace

ncclResult_t run_collective(Session* s, const Transfer& t) {
  return Collective(s, t).run();
}

ncclResult_t run_point_to_point(Session* s, const std::vector<Transfer>& transfers) {
  std::vector<Stream> open;
  for (const Transfer& t : transfers) {
    bool sending = t.func == Func::Send;
    Stream one{sending ? s->pipe(s->rank(), t.root) : s->pipe(t.root, s->rank()), sending, t.root,
               static_cast<char*>(sending ? const_cast<void*>(t.send) : t.recv), t.count * type_size(t.type)};
    if (one.left) open.push_back(one);
  }
  while (!open.empty()) {
    uint32_t seen = s->pipe_events();
    bool moved = false;
    for (size_t i = 0; i < open.size(); i++) {
      // Several messages between the same two ranks share a pipe and go one after the other.
      bool earlier = std::any_of(open.begin(), open.begin() + static_cast<long>(i), [&](const Stream& o) {
        return o.pipe == open[i].pipe && o.sending == open[i].sending;
      });
      if (earlier || !open[i].advance(s->pipe_bytes())) continue;
      moved = true;
      s->notify(open[i].peer);
    }
    std::erase_if(open, [](const Stream& o) { return !o.left; });
    if (moved || open.empty()) continue;
    if (ncclResult_t r = s->wait_for_pipes(seen)) return r;
    if (s->pipe_events() != seen) continue;
    for (const Stream& o : open) {
      if (!s->is_gone(o.peer) || s->pipe_events() != seen) continue;
      s->fail();
      return ncclRemoteError;
    }
  }
  return ncclSuccess;
}

}  // namespace standin
