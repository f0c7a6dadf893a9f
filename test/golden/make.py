#!/usr/bin/env python3
"""Computes every row of test/cases/cases.txt with PyTorch, in double, and writes test/golden/NAME.safetensors.

Values are rounded to float before they are used, results once at the end: what a golden holds is right to the last place of a
float. Rows whose outcome hangs on a coin (an activation near relu's kink, a tie in a maximum) are drawn again."""
import json, os, re, struct, sys, zlib
from fnmatch import fnmatchcase

import torch
import torch.nn as nn
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
torch.set_default_dtype(torch.float64)
MARGIN = 4e-3  # from a kink: also the finite differences of test/cases must not step over it


class Coin(Exception):
    """Too close to a kink or a tie."""


def read_cases(path):
    cases = []
    for line in open(path):
        line = line.split('#')[0].rstrip()
        if line.startswith('case '):
            name, *options = line.split()[1:]
            case = {'name': name, 'rows': 3, 'train': 1, 'steps': 0, 'given': 0, 'lines': [], 'set': {}}
            case.update((k, int(v)) for k, v in (o.split('=') for o in options))
            cases.append(case)
        elif line:
            key, value = (t.strip() for t in line.split('=', 1))
            if re.match(r'(loss|optimizer)\.', key):
                cases[-1]['set'][key] = value
            else:
                cases[-1]['lines'].append((key, value))
    return cases


# ---- the model: one torch module a line with parameters, named as in PyTorch ----
def pool_options(o):
    return int(o['kernel']), int(o.get('stride', o['kernel'])), int(o.get('pad', 0))


def relu(x):
    if x.abs().min() < MARGIN:
        raise Coin
    return F.relu(x)


def maxpool(x, o):
    y, at = F.max_pool2d(x, *pool_options(o), return_indices=True)
    for _ in range(3):
        if not torch.equal(at, F.max_pool2d(x + MARGIN * torch.rand_like(x), *pool_options(o), return_indices=True)[1]):
            raise Coin
    return y


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.causal = causal
        self.inner = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        t = x.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1) if self.causal else None
        return self.inner(x, x, x, attn_mask=mask, need_weights=False)[0]


class Position(nn.Module):
    def __init__(self, t, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(t, width))

    def forward(self, x):
        return x + self.weight


def module_of(op, o, x):
    """The module of an op with parameters, for an input like x; None for the others."""
    if op == 'conv2d':
        return nn.Conv2d(x.shape[1], int(o['out']), int(o['kernel']), int(o.get('stride', 1)), int(o.get('pad', 0)), int(o.get('dilation', 1)),
                         int(o.get('groups', 1)), o.get('bias', '1') == '1')
    if op == 'linear':
        return nn.Linear(x.shape[-1], int(o['out']), o.get('bias', '1') == '1')
    if op == 'batchnorm2d':
        return nn.BatchNorm2d(x.shape[1], float(o.get('eps', 1e-5)), float(o.get('momentum', .1)))
    if op == 'layernorm':
        return nn.LayerNorm(x.shape[-1], float(o.get('eps', 1e-5)))
    if op == 'embedding':
        return nn.Embedding(int(o['vocab']), int(o['dim']))
    if op == 'position':
        return Position(*x.shape[1:])
    if op == 'attention':
        return Attention(x.shape[-1], int(o['heads']), o.get('causal', '0') == '1')
    return None


def plain(op, o, xs, train):
    x = xs[0]
    if op == 'relu': return relu(x)
    if op == 'gelu': return F.gelu(x, approximate=o.get('approximate', 'none'))
    if op == 'sigmoid': return torch.sigmoid(x)
    if op == 'tanh': return torch.tanh(x)
    if op == 'softmax': return F.softmax(x, 1 if x.dim() == 4 else -1)
    if op == 'maxpool2d': return maxpool(x, o)
    if op == 'avgpool2d': return F.avg_pool2d(x, *pool_options(o))
    if op == 'globalavgpool': return F.adaptive_avg_pool2d(x, 1)
    if op == 'flatten': return x.flatten(1)
    if op == 'add': return sum(xs[1:], x)
    if op == 'concat': return torch.cat(xs, 1 if x.dim() == 4 else -1)
    if op == 'dropout':
        assert not train or float(o['p']) == 0, 'masks are our own: no golden for them'
        return x
    raise SystemExit(f'no such op: {op}')


class Net:
    def __init__(self, lines):
        self.lines, self.modules = lines, {}

    def __call__(self, x, train=True):
        at, last = {'input': x}, x
        for name, spec in self.lines[1:]:
            for k, part in enumerate(spec.split('|')):
                op, *options = part.split()
                o = dict(t.split('=', 1) for t in options)
                xs = [at[n] for n in o['from'].split(',')] if 'from' in o else [last]
                module = self.modules.get((name, k)) or module_of(op, o, xs[0])
                if module is not None:
                    if (name, k) not in self.modules:
                        spread(module)
                        self.modules[name, k] = module
                    last = module.train(train)(xs[0])
                else:
                    last = plain(op, o, xs, train)
            at[name] = last
        return last

    def tensors(self, buffers):
        for (name, _), module in self.modules.items():
            inner = module.inner if isinstance(module, Attention) else module
            for key, t in inner.named_buffers() if buffers else inner.named_parameters():
                yield f'{name}.{key}', t


def spread(module):
    """PyTorch's start has ones and zeros that hide mistakes: those get random values too. All are rounded to float."""
    with torch.no_grad():
        for key, t in list(module.named_parameters()) + list(module.named_buffers()):
            if t.dtype == torch.int64:
                continue
            if 'running_var' in key: t.uniform_(.5, 1.5)
            elif 'running_mean' in key: t.normal_(0, .3)
            elif isinstance(module, (nn.BatchNorm2d, nn.LayerNorm)) and key == 'weight': t.normal_(1, .2)
            elif t.dim() == 1 and not isinstance(module, (nn.Linear, nn.Conv2d)): t.normal_(0, .2)
            t.copy_(t.float().double())


# ---- one case ----
def channels_last(t):
    return t.permute(0, 2, 3, 1) if t.dim() == 4 else t


def draw_input(spec, rows, lines):
    if spec.startswith('tokens'):
        vocab = int(re.search(r'vocab=(\d+)', lines[1][1]).group(1))
        return torch.randint(0, vocab, (rows, int(spec.split()[1])))
    return torch.randn(rows, *map(int, spec.split('x'))).float().double()


def draw_target(settings, out):
    if settings['loss.kind'] == 'mse':
        return torch.randn_like(out).float().double()
    y = torch.randint(0, out.shape[-1], out.shape[:-1])
    if 'loss.ignore_label' in settings:
        y.flatten()[::3] = int(settings['loss.ignore_label'])
    return y


def loss_sums(settings, out, y):
    """Sum of the losses, number of targets, number of hits."""
    if settings['loss.kind'] == 'mse':
        return F.mse_loss(out, y, reduction='sum'), y.numel(), 0
    ignore = int(settings.get('loss.ignore_label', -2**31))
    top = out.sort(-1).values
    if (top[..., -1] - top[..., -2]).min() < 1e-4:
        raise Coin
    logits, flat = out.reshape(-1, out.shape[-1]), y.reshape(-1)
    loss = F.cross_entropy(logits, flat, ignore_index=ignore, label_smoothing=float(settings.get('loss.label_smoothing', 0)), reduction='sum')
    return loss, int((flat != ignore).sum()), int(((logits.argmax(-1) == flat) & (flat != ignore)).sum())


def matches(patterns, name):
    return any(fnmatchcase(name, p.strip()) for p in patterns.split(',') if p.strip())


def make_optimizer(settings, net):
    get = lambda key, default: float(settings.get('optimizer.' + key, default))
    kind, no_decay, freeze = settings['optimizer.kind'], settings.get('optimizer.no_decay', ''), settings.get('optimizer.freeze', '')
    decay = get('weight_decay', .01 if kind == 'adamw' else 0)
    groups = [{'params': [t], 'weight_decay': 0 if matches(no_decay, n) else decay} for n, t in net.tensors(False) if not matches(freeze, n)]
    if kind == 'sgd':
        return torch.optim.SGD(groups, get('lr', 0), get('momentum', 0), nesterov=get('nesterov', 0) == 1)
    make = torch.optim.AdamW if kind == 'adamw' else torch.optim.Adam
    return make(groups, get('lr', 0), (get('beta1', .9), get('beta2', .999)), get('eps', 1e-8))


def step(settings, net, optimizer, k):
    trained = [t for g in optimizer.param_groups for t in g['params']]
    if float(settings.get('optimizer.clip_norm', 0)) > 0:
        nn.utils.clip_grad_norm_(trained, float(settings['optimizer.clip_norm']))
    for g in optimizer.param_groups:
        g['lr'] = float(settings['optimizer.lr']) / 2**k
    optimizer.step()


def put(result, prefix, tensors):
    result.update((f'{prefix}.{name}', t.detach().clone()) for name, t in tensors)


def compute(case):
    settings, result = case['set'], {}
    net = Net(case['lines'])
    x = draw_input(case['lines'][0][1], case['rows'], case['lines'])
    net(x, train=False)  # makes the modules, leaves the statistics alone
    put(result, 'param', net.tensors(False))
    put(result, 'buffer', net.tensors(True))

    if case['given']:
        optimizer = make_optimizer(settings, net)
        for k in range(case['steps']):
            for name, t in net.tensors(False):
                total = (torch.randn_like(t) * 4).float().double()
                result[f'given{k}.{name}'] = total
                t.grad = total / 5
            step(settings, net, optimizer, k)
        put(result, 'end', net.tensors(False))
        return result

    out = net(x, train=case['train'] == 1)
    result.update(x=channels_last(x), out=channels_last(out))
    if not case['train']:
        return result
    put(result, 'stats', net.tensors(True))
    if 'loss.kind' in settings:
        y = draw_target(settings, out)
        loss, targets, correct = loss_sums(settings, out, y)
        result.update(y=channels_last(y), loss=loss.detach(), targets=torch.tensor(targets), correct=torch.tensor(correct))
    else:
        weight = torch.randn_like(out).float().double()
        result['dout'] = channels_last(weight)
        loss = (out * weight).sum()
    loss.backward()
    result.update((f'grad.{name}', t.grad.clone()) for name, t in net.tensors(False))

    if case['steps']:
        optimizer = make_optimizer(settings, net)
        for k in range(case['steps']):
            if k:
                optimizer.zero_grad()
                loss, targets, _ = loss_sums(settings, net(x), y)
                loss.backward()
            result[f'loss{k}'] = loss.detach()
            for _, t in net.tensors(False):
                t.grad /= targets
            step(settings, net, optimizer, k)
        put(result, 'end', net.tensors(False))
        put(result, 'end', net.tensors(True))
    return result


def write(path, tensors):
    header, blob = {}, b''
    def stored(name, t):
        if t.dtype == torch.int64: return t if 'num_batches' in name else t.to(torch.int32)
        return t.double() if name.startswith('loss') else t.float()
    tensors = {name: stored(name, t) for name, t in tensors.items()}
    for name, t in sorted(tensors.items(), key=lambda item: -item[1].element_size()):  # aligned without gaps, which the format forbids
        data = t.detach().contiguous().numpy().tobytes()
        kind = {torch.int32: 'I32', torch.int64: 'I64', torch.float32: 'F32', torch.float64: 'F64'}[t.dtype]
        header[name] = {'dtype': kind, 'shape': list(t.shape), 'data_offsets': [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text + blob)


def main():
    total = 0
    cases = read_cases(os.path.join(HERE, '..', 'cases', 'cases.txt'))
    for old in os.listdir(HERE):
        if old.endswith('.safetensors') and old[:-12] not in {c['name'] for c in cases}:
            os.remove(os.path.join(HERE, old))
    for case in cases:
        for attempt in range(1000):
            torch.manual_seed(zlib.crc32(case['name'].encode()) + attempt)
            try:
                result = compute(case)
                break
            except Coin:
                continue
        else:
            sys.exit(f"{case['name']}: no draw without a coin; make the case smaller")
        path = os.path.join(HERE, case['name'] + '.safetensors')
        write(path, result)
        total += os.path.getsize(path)
    print(f'{len(cases)} cases, {total / 1e6:.2f} MB')


main()
