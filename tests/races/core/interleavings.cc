// Small programs of the code that does not depend on TensorFlow: slab, far memory, thread teams.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/memory/host_pool.h"
#include "core/memory/slab.h"
#include "core/util/thread_team.h"
#include "far/far_memory.h"
#include "interleaving/explore.h"
#include "pattern.h"

namespace {

using interleaving::Pause;
using interleaving::Program;
using interleaving::Require;
using races::Fill;
using races::Holds;
using tfswap::FarCopy;
using tfswap::FarFile;
using tfswap::FarMemory;
using tfswap::FarTier;
using tfswap::HostPool;
using tfswap::PlacementRequest;
using tfswap::Slab;
using tfswap::ThreadTeam;

constexpr int64_t kKiB = 1024;
constexpr int64_t kChunk = Slab::kChunkBytes;

class Account : public tfswap::MemoryAccount {
 public:
  explicit Account(int64_t limit) : limit_(limit) {}
  bool TryReserve(int64_t bytes) override {
    int64_t used = used_.load();
    do {
      if (used + bytes > limit_) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes));
    return true;
  }
  void Release(int64_t bytes) override {
    Require(used_.fetch_sub(bytes) >= bytes, "more is released than was reserved");
  }
  int64_t OverBudgetBytes() const override { return 0; }
  int64_t used() const { return used_.load(); }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0};
};

// A slab of few chunks with an account that pays for them.
struct Place {
  explicit Place(int64_t chunks) : account(chunks * kChunk), slab(int64_t{1} << 30, &account) {}

  // Use a claim for a while; no other thread writes there.
  void Use(int64_t offset, int64_t bytes, uint32_t owner) {
    Fill(slab.At(offset), bytes, owner);
    Pause();
    Require(Holds(slab.At(offset), bytes, owner), "a claim is somebody else's too");
  }
  void Begin() { slab.Decommit(int64_t{1} << 40); }
  void Check() {
    Require(slab.Stats().claimed_bytes == 0, "granules stayed taken");
    Require(account.used() == slab.Stats().committed_bytes, "what is backed is not what is paid");
  }

  Account account;
  Slab slab;
};

Program PlacesInASlab() {
  auto place = std::make_shared<Place>(4);
  const auto claim = [place](int64_t offset, int64_t bytes, uint32_t owner) {
    Slab& slab = place->slab;
    if (slab.Claim(offset, bytes) != Slab::Claimed::kYes) {
      offset = slab.ClaimUnplanned(bytes);
      if (offset < 0) return;
    }
    place->Use(offset, bytes, owner);
    slab.Release(offset);
  };
  return {"places in a slab",
          {{"planned", [claim] { claim(0, 96 * kKiB, 1); }},
           {"overlapping", [claim] { claim(60 * kKiB, 40 * kKiB, 2); }},
           {"decommit", [place] { place->slab.Decommit(kChunk); }}},
          [place] { place->Begin(); },
          [place] { place->Check(); }};
}

Program SectionsInASlab() {
  auto place = std::make_shared<Place>(3);
  return {"sections in a slab",
          {{"section by section",
            [place] {
              Slab& slab = place->slab;
              const int64_t offset = slab.ClaimUnplanned(2 * kChunk, kChunk);
              if (offset < 0) return;
              place->Use(offset, kChunk, 1);
              if (slab.Pay(offset, 2 * kChunk)) place->Use(offset, 2 * kChunk, 2);
              slab.ReleaseEnd(offset, kKiB);
              place->Use(offset, kKiB, 3);
              slab.Release(offset);
            }},
           {"other",
            [place] {
              const int64_t offset = place->slab.ClaimUnplanned(kChunk + kKiB);
              if (offset < 0) return;
              place->Use(offset, kChunk + kKiB, 4);
              place->slab.Release(offset);
            }},
           {"decommit", [place] { place->slab.Decommit(kChunk); }}},
          [place] { place->Begin(); },
          [place] { place->Check(); }};
}

// Blocks of whole words of granules, and one that overlaps them by a few granules.
Program WordsOfASlab() {
  auto place = std::make_shared<Place>(6);
  const auto claim = [place](int64_t offset, int64_t bytes, uint32_t owner) {
    if (place->slab.Claim(offset, bytes) != Slab::Claimed::kYes) return;
    place->Use(offset, bytes, owner);
    place->slab.Release(offset);
  };
  return {"words of a slab",
          {{"words", [claim] { claim(0, 3 * kChunk, 1); }},
           {"rest", [claim] { claim(2 * kChunk + 63 * kKiB, kChunk + kKiB, 2); }},
           {"inside", [claim] { claim(kChunk + 5 * kKiB, kKiB, 3); }}},
          [place] { place->Begin(); },
          [place] { place->Check(); }};
}

Program BlocksOfAPool() {
  auto pool = std::make_shared<HostPool>(HostPool::System(64 * kKiB));
  pool->SetLimit(112 * kKiB);
  const auto use = [pool](std::vector<int64_t> sizes, uint32_t owner) {
    for (const int64_t bytes : sizes) {
      void* block = pool->Allocate(bytes);
      if (block == nullptr) continue;
      Fill(block, bytes, owner);
      Pause();
      Require(Holds(block, bytes, owner), "a host block has two owners");
      pool->Free(block, bytes);
    }
  };
  return {"blocks of a pool",
          {{"one", [use] { use({8 * kKiB, 40 * kKiB}, 1); }},
           {"two", [use] { use({40 * kKiB, 8 * kKiB}, 2); }},
           {"trim", [pool] { pool->Trim(); }}},
          [pool] { pool->Trim(); },
          [pool] {
            Require(pool->Stats().bytes_in_use == 0, "host memory stays in use");
            Require(pool->Stats().bytes_cached <= 112 * kKiB, "more is kept than the limit");
          }};
}

// Tensors that leave and return, in the tiers that the requests name.
Program Tiers(const std::string& name, FarMemory* memory, std::vector<PlacementRequest> requests) {
  constexpr int64_t kBytes = 160 * kKiB;
  Program program;
  program.name = name;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto owner = static_cast<uint32_t>(i + 1);
    const PlacementRequest request = requests[i];
    auto tensor = std::make_shared<std::vector<char>>(kBytes);
    program.threads.push_back({"tensor " + std::to_string(owner), [=] {
                                 Fill(tensor->data(), kBytes, owner);
                                 FarCopy copy;
                                 if (!memory->Put(tensor->data(), kBytes, request, &copy)) return;
                                 std::fill(tensor->begin(), tensor->end(), 0);
                                 Pause();
                                 const std::string problem = memory->Get(copy, tensor->data()).why;
                                 Require(problem.empty(), problem);
                                 Require(Holds(tensor->data(), kBytes, owner),
                                         "another tensor came back");
                                 memory->Drop(&copy);
                               }});
  }
  program.check = [memory] {
    Require(memory->host()->Stats().bytes_in_use == 0, "far memory stays in use");
    for (const auto& tier : memory->Stats().tiers) {
      Require(tier.bytes_in_use == 0, "a tier counts what was dropped");
    }
  };
  return program;
}

Program HostTier() {
  auto* memory = new FarMemory(FarFile::Get());
  memory->host()->SetLimit(400 * kKiB);  // two tensors
  return Tiers("host memory", memory, {PlacementRequest(), PlacementRequest(), PlacementRequest()});
}

Program EncodedTier() {
  auto* memory = new FarMemory(FarFile::Get());
  PlacementRequest encoded;
  encoded.tier = FarTier::kCompressed;
  encoded.codec.codec = tfswap::Codec::kZvc;
  encoded.threads = 2;
  return Tiers("encoded by teams", memory, {encoded, encoded});
}

Program Teams() {
  return {"teams",
          {{"three",
            [] {
              std::atomic<int> left{3}, done{0};
              ThreadTeam::Shared().RunParallel(3, [&] {
                while (left.fetch_sub(1) > 0) done.fetch_add(1);
              });
              Require(done.load() == 3, "parts of the work were left out");
            }},
           {"two", [] {
              std::vector<int> parts(2);
              std::atomic<int> next{0};
              ThreadTeam::Shared().RunParallel(2, [&] {
                for (int i; (i = next.fetch_add(1)) < 2;) ++parts[i];
              });
              Require(parts[0] == 1 && parts[1] == 1, "a part was not done once");
            }}}};
}

std::vector<Program> Make() {
  return {PlacesInASlab(), SectionsInASlab(), WordsOfASlab(), BlocksOfAPool(),
          HostTier(),      EncodedTier(),     Teams()};
}

}  // namespace

int main(int argc, char** argv) { return interleaving::Main(argc, argv, Make); }
