"""What the training benchmarks share: the same model in PyTorch and in Muster on CPU ranks, step times of each.

Model: nanoGPT's CPU setting (4 layers, 4 heads, 128 wide, context 64, vocabulary 65). Ranks of one thread each.
As a program it is one rank of the PyTorch side.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 4, 4, 128, 64, 65
WARM_UP = 20


def build_model(torch, layers=LAYERS, heads=HEADS, width=WIDTH, context=CONTEXT, vocab=VOCAB, dropout=0.0):
    """GPT-2 with the usual eager PyTorch modules, no biases, tied head."""
    nn, F = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
            self.drop = nn.Dropout(dropout)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (y.view(b, t, heads, c // heads).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, dim=2))
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout if self.training else 0.0)
            x = x + self.drop(self.out(a.transpose(1, 2).contiguous().view(b, t, c)))
            return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
            self.drop = nn.Dropout(dropout)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, vocab, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x, y):
            h = self.drop(self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device)))
            for block in self.blocks:
                h = block(h)
            return F.cross_entropy(self.head(self.norm(h)).view(-1, vocab), y.view(-1))

    return Gpt()


ADAMW = {"lr": 1e-3, "betas": (0.9, 0.99), "fused": True}


def decay_groups(model):
    decay = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]


def adamw(torch, model):
    return torch.optim.AdamW(decay_groups(model), **ADAMW)


def gpt2_weights(torch, model):
    """With PyTorch's own start, N(0, 1) in a tied embedding, the loss says little of a training."""
    for p in model.parameters():
        if p.dim() >= 2:
            torch.nn.init.normal_(p, 0.0, 0.02)


def wrap(torch, strategy, ranks):
    """The model and its optimizer under one of PyTorch's strategies; alike on all ranks, which have one seed."""
    model = build_model(torch)
    gpt2_weights(torch, model)
    if strategy == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
        return model, adamw(torch, model)
    if strategy == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        model = torch.nn.parallel.DistributedDataParallel(model)
        # Bucket views: its faster form, one broadcast a bucket instead of one a parameter.
        return model, ZeroRedundancyOptimizer(decay_groups(model), torch.optim.AdamW, parameters_as_bucket_view=True, **ADAMW)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=strategy == "fsdp3")
    fully_shard(model, mesh=mesh, reshard_after_forward=strategy == "fsdp3")
    return model, adamw(torch, model)


def peer_rank(rank, ranks, port, sequences, steps, result, strategy):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(1337)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    model, optimizer = wrap(torch, strategy, ranks)
    torch.manual_seed(rank)
    tokens = torch.randint(VOCAB, (sequences, CONTEXT + 1))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    times, losses = [], []
    for _ in range(steps):
        start = time.perf_counter()
        loss = model(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        times.append(1e3 * (time.perf_counter() - start))
    if not 0 < losses[-1] < losses[0]:
        sys.exit(f"bench: the PyTorch side ({strategy}) does not train: loss {losses[0]:.4f}, then {losses[-1]:.4f}")
    if rank == 0:
        pathlib.Path(result).write_text(json.dumps(times[WARM_UP:]))
    dist.barrier()
    os._exit(0)  # gloo's threads sometimes abort a process that ends in the usual way


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_ranks(commands, env, seconds=300):
    """Whether all ended well in time. One that fails ends the others, which would wait for it; none is left behind."""
    deadline, ps = time.monotonic() + seconds, [subprocess.Popen(c, env=env) for c in commands]
    try:
        while any(p.poll() is None for p in ps) and not any(p.poll() for p in ps) and time.monotonic() < deadline:
            time.sleep(0.05)
        return all(p.poll() == 0 for p in ps)
    finally:
        for p in ps:
            p.kill()
            p.wait()


def run_peer(ranks, sequences, steps, strategy="ddp"):
    """Median milliseconds a step."""
    with tempfile.TemporaryDirectory() as folder:
        result, port = f"{folder}/times.json", free_port()
        tail = [str(v) for v in (ranks, port, sequences, steps, result, strategy)]
        env = dict(os.environ, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
        if not run_ranks([[sys.executable, __file__, str(r), *tail] for r in range(ranks)], env):
            sys.exit(f"bench: the PyTorch side ({strategy}) failed; is its full set installed (./scripts/setup --full)?")
        return statistics.median(json.loads(pathlib.Path(result).read_text()))


def run_muster(muster, ranks, sequences, steps, options=()):
    """Median milliseconds a step."""
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(folder) / "text.txt"
        alphabet = "".join(chr(48 + i) for i in range(VOCAB))
        text.write_text("".join(alphabet[(i * i + i // 7) % VOCAB] for i in range(200_000)) + alphabet)
        command = [muster, "launch", str(ROOT / "scripts/configs/shakespeare-char-cpu.yaml"), "-n", str(ranks),
                   "--data", str(text), "--micro-batch-size", str(sequences), "--global-batch-size", str(sequences * ranks),
                   "--train-iters", str(steps), "--log-interval", "1", "--eval-interval", str(steps), "--eval-iters", "1",
                   "--sample-tokens", "0", "--threads", "1", "--device", "cpu", "--run-dir", f"{folder}/run", *options]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300)
        if done.returncode:
            sys.exit(f"bench: muster failed: {done.stderr[-2000:]}")
        rows = [json.loads(line) for line in open(f"{folder}/run/metrics.jsonl")]
        return statistics.median([r["step_ms"] for r in rows if "loss" in r][WARM_UP:])


def at_least(least):
    """For argparse: a whole number, not under the least."""

    def whole(text):
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"found '{text}', wanted a whole number >= {least}")
        return int(text)

    return whole


def list_of(item):
    """For argparse: items with commas between them."""
    return lambda text: [item(part) for part in text.split(",")]


def program(text):
    if not os.access(text, os.X_OK) or not os.path.isfile(text):
        raise argparse.ArgumentTypeError(f"found '{text}', wanted a program; build it: ./scripts/build")
    return text


def options(description, steps):
    """The options of all training benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=at_least(1), default=2)
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--steps", type=at_least(WARM_UP + 1), default=steps, help=f"the first {WARM_UP} are not counted")
    parser.add_argument("--muster", type=program, default=str(ROOT / "build/bin/muster"))
    return parser


HEADING = f"{'PyTorch ms':>11} {'Muster ms':>10} {'ratio':>6}   rounds (PyTorch | Muster)"


def in_turns(rounds, peer, ours):
    """Runs the sides in turns; a row under HEADING: the medians, ours / theirs, every round."""
    times = [(peer(), ours()) for _ in range(rounds)]
    ps, ms = zip(*times)
    p, m = statistics.median(ps), statistics.median(ms)
    return f"{p:>11.2f} {m:>10.2f} {m / p:>6.2f}   " + " | ".join(" ".join(f"{t:.1f}" for t in side) for side in (ps, ms))


if __name__ == "__main__":
    peer_rank(*map(int, sys.argv[1:6]), *sys.argv[6:8])
