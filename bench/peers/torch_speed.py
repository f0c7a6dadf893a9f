"""Trains one of the six benchmark models with PyTorch on a fixed random batch and prints samples/s (median of 5 rounds).
usage: torch_speed.py MODEL THREADS SECONDS [ddp]      ddp: two gloo processes of THREADS threads, half the batch each
DEVICE=cuda: on the first GPU, with TF32 for products as well as for convolutions, which is what dp does by default"""
import os, socket, statistics, sys, time

START = time.perf_counter()
DEVICE = os.environ.get("DEVICE", "cpu")
import torch
import torch.nn as nn
import torch.nn.functional as F


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.f1, self.f2 = nn.Linear(9216, 128), nn.Linear(128, 10)
        self.d1, self.d2 = nn.Dropout(0.25), nn.Dropout(0.5)

    def forward(self, x):
        x = self.d1(F.max_pool2d(F.relu(self.c2(F.relu(self.c1(x)))), 2))
        return self.f2(self.d2(F.relu(self.f1(x.flatten(1)))))


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.down = nn.Identity()
        if stride != 1 or i != o:
            self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.down(x))


def resnet(width, stages):
    layers, c = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()], width
    for out, stride in stages:
        layers.append(Block(c, out, stride))
        c = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))


class GptBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.ln1, self.ln2, self.heads = nn.LayerNorm(d), nn.LayerNorm(d), heads
        self.attn, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in self.attn(self.ln1(x)).split(d, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(y)
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocab, t, d, heads, layers):
        super().__init__()
        self.e, self.p = nn.Embedding(vocab, d), nn.Embedding(t, d)
        self.b = nn.Sequential(*[GptBlock(d, heads) for _ in range(layers)])
        self.ln, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, x):
        return self.head(self.ln(self.b(self.e(x) + self.p.weight[: x.shape[1]])))


IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)
MODELS = {  # build, batch, shape of a sample (None: 128 tokens of 65)
    "mlp": (mlp, 128, IMAGE),
    "lenet": (LeNet, 64, IMAGE),
    "mnist-cnn": (MnistCnn, 64, IMAGE),
    "resnet20": (lambda: resnet(16, [(16, 1)] * 3 + [(32, 2), (32, 1), (32, 1), (64, 2), (64, 1), (64, 1)]), 128, COLOUR),
    "resnet18": (lambda: resnet(64, [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]), 64, COLOUR),
    "gpt-mini": (lambda: Gpt(65, 128, 128, 4, 4), 16, None),
}


def train(name, threads, seconds, rank, world, port):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    build, batch, shape = MODELS[name]
    batch //= world
    torch.backends.cuda.matmul.allow_tf32 = True
    model = build().to(DEVICE)
    tokens = shape is None
    if name.startswith("resnet"):
        model = model.to(memory_format=torch.channels_last)
    x = torch.randint(0, 65, (batch, 128)) if tokens else torch.rand(batch, *shape)
    y = torch.randint(0, 65, (batch * 128,)) if tokens else torch.randint(0, 10, (batch,))
    if name.startswith("resnet"):
        x = x.to(memory_format=torch.channels_last)
    x, y = x.to(DEVICE), y.to(DEVICE)
    if tokens:
        step = torch.optim.AdamW(model.parameters(), lr=1e-3)
    else:
        step = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    if world > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
        model = nn.parallel.DistributedDataParallel(model)

    def run(n):
        for _ in range(n):
            step.zero_grad()
            out = model(x)
            F.cross_entropy(out.reshape(-1, out.shape[-1]), y).backward()
            step.step()
        if DEVICE != "cpu":
            torch.cuda.synchronize()

    run(1)
    first = time.perf_counter() - START
    begin = time.perf_counter()
    run(3)
    n = max(2, int(seconds / 5 / ((time.perf_counter() - begin) / 3)))
    if world > 1:  # every process must take the same number of steps
        count = torch.tensor([n])
        torch.distributed.broadcast(count, 0)
        n = int(count)
    rates = []
    for _ in range(5):
        begin = time.perf_counter()
        run(n)
        rates.append(batch * world * n / (time.perf_counter() - begin))
    if rank == 0:
        with open("/proc/self/statm") as f:
            resident = int(f.read().split()[1]) * os.sysconf("SC_PAGESIZE")
        print(f"{statistics.median(rates):.2f} {first:.3f} {resident}", flush=True)
    if world > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    name, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    if sys.argv[4:] == ["ddp"]:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        ranks = [torch.multiprocessing.get_context("spawn").Process(target=train, args=(name, threads, seconds, r, 2, port)) for r in range(2)]
        for p in ranks:
            p.start()
        for p in ranks:
            p.join()
        sys.exit(max(p.exitcode for p in ranks))
    train(name, threads, seconds, 0, 1, 0)
