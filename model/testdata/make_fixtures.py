"""Make the fixtures of model_test: one block each, forward and backward, by PyTorch's autograd in float64.

  python make_fixtures.py OUT_DIR        needs: torch, safetensors

A file holds, in float32: weight.NAME and gradient.NAME of every tensor (names as in a Hugging Face file, without the layer's prefix), input [B, T, C],
output, output_gradient, input_gradient. Sizes are in the metadata. The formulas are written out here, from the papers, and share nothing with the engine.
"""
import math, os, sys
import torch
from safetensors.torch import save_file

torch.set_default_dtype(torch.float64)


def attention(q, k, v):
    """[B, H, T, D] each; causal; k and v may have fewer heads."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    t = q.shape[2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v


def heads(x, count):
    b, t, width = x.shape
    return x.view(b, t, count, width // count).transpose(1, 2)


def merge(x):
    b, h, t, d = x.shape
    return x.transpose(1, 2).reshape(b, t, h * d)


def gpt2(w, x, heads_count, eps):
    def norm(y, name):
        mean = y.mean(-1, keepdim=True)
        var = ((y - mean) ** 2).mean(-1, keepdim=True)
        return (y - mean) / (var + eps).sqrt() * w[name + ".weight"] + w[name + ".bias"]

    def conv(y, name):
        return y @ w[name + ".weight"] + w[name + ".bias"]

    q, k, v = conv(norm(x, "ln_1"), "attn.c_attn").chunk(3, -1)
    x = x + conv(merge(attention(heads(q, heads_count), heads(k, heads_count), heads(v, heads_count))), "attn.c_proj")
    f = conv(norm(x, "ln_2"), "mlp.c_fc")
    f = f / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (f + 0.044715 * f**3)))
    return x + conv(f, "mlp.c_proj")


def rotate(x, theta):
    """Element j turns with j + D/2 by position * theta^(-2j/D)."""
    t, d = x.shape[2], x.shape[3]
    angle = torch.arange(t)[:, None] * theta ** (-2 * torch.arange(d // 2) / d)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def llama(w, x, heads_count, kv_heads, eps, theta):
    def norm(y, name):
        return y / ((y**2).mean(-1, keepdim=True) + eps).sqrt() * w[name + ".weight"]

    def linear(y, name):
        y = y @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w else y

    h = norm(x, "input_layernorm")
    q, k = heads(linear(h, "self_attn.q_proj"), heads_count), heads(linear(h, "self_attn.k_proj"), kv_heads)
    if "self_attn.q_norm.weight" in w:
        q, k = norm(q, "self_attn.q_norm"), norm(k, "self_attn.k_norm")
    q, k = rotate(q, theta), rotate(k, theta)
    v = heads(linear(h, "self_attn.v_proj"), kv_heads)
    x = x + linear(merge(attention(q, k, v)), "self_attn.o_proj")
    h = norm(x, "post_attention_layernorm")
    gate = linear(h, "mlp.gate_proj")
    return x + linear(gate * torch.sigmoid(gate) * linear(h, "mlp.up_proj"), "mlp.down_proj")


def weights(shapes, seed):
    g = torch.Generator().manual_seed(seed)
    result = {}
    for name, shape in shapes.items():
        w = torch.randn(shape, generator=g) * (0.1 if len(shape) == 1 else 0.3)
        is_gain = len(shape) == 1 and name.endswith(".weight")
        result[name] = w + 1 if is_gain else w
    return {k: v.float().double().requires_grad_() for k, v in result.items()}, g


def save(path, run, shapes, seed, batch, seq, hidden, metadata):
    w, g = weights(shapes, seed)
    x = torch.randn(batch, seq, hidden, generator=g).float().double().requires_grad_()
    dy = torch.randn(batch, seq, hidden, generator=g).float().double()
    y = run(w, x)
    y.backward(dy)
    out = {"input": x.detach(), "output": y.detach(), "output_gradient": dy, "input_gradient": x.grad}
    for name, value in w.items():
        out["weight." + name] = value.detach()
        out["gradient." + name] = value.grad
    metadata = dict(metadata, batch=batch, seq=seq, hidden=hidden)
    save_file({k: v.float().contiguous() for k, v in out.items()}, path, {k: str(v) for k, v in metadata.items()})
    print(path, os.path.getsize(path), "bytes")


def main(out):
    c, f = 24, 40
    save(os.path.join(out, "gpt2_block.safetensors"), lambda w, x: gpt2(w, x, 3, 1e-5),
         {"ln_1.weight": [c], "ln_1.bias": [c], "attn.c_attn.weight": [c, 3 * c], "attn.c_attn.bias": [3 * c],
          "attn.c_proj.weight": [c, c], "attn.c_proj.bias": [c], "ln_2.weight": [c], "ln_2.bias": [c],
          "mlp.c_fc.weight": [c, f], "mlp.c_fc.bias": [f], "mlp.c_proj.weight": [f, c], "mlp.c_proj.bias": [c]},
         1, 2, 7, c, dict(heads=3, ffn=f))

    def llama_shapes(hidden, q, kv, ffn, bias):
        shapes = {"input_layernorm.weight": [hidden], "self_attn.q_proj.weight": [q, hidden], "self_attn.k_proj.weight": [kv, hidden],
                  "self_attn.v_proj.weight": [kv, hidden], "self_attn.o_proj.weight": [hidden, q], "post_attention_layernorm.weight": [hidden],
                  "mlp.gate_proj.weight": [ffn, hidden], "mlp.up_proj.weight": [ffn, hidden], "mlp.down_proj.weight": [hidden, ffn]}
        if bias:
            shapes.update({n.replace(".weight", ".bias"): [s[0]] for n, s in list(shapes.items()) if len(s) == 2})
        return shapes

    # Grouped queries, and a head_dim that is not hidden / heads.
    save(os.path.join(out, "llama_block.safetensors"), lambda w, x: llama(w, x, 4, 2, 1e-5, 10000.0), llama_shapes(20, 4 * 6, 2 * 6, 44, False),
         2, 2, 9, 20, dict(heads=4, kv_heads=2, head_dim=6, ffn=44, theta=10000.0))
    # One key and value head, biases everywhere, another theta.
    save(os.path.join(out, "llama_bias_block.safetensors"), lambda w, x: llama(w, x, 3, 1, 1e-6, 500.0), llama_shapes(18, 3 * 6, 6, 28, True),
         3, 1, 11, 18, dict(heads=3, kv_heads=1, head_dim=6, ffn=28, theta=500.0))
    # Qwen2: biases on q, k and v.
    shapes = llama_shapes(16, 4 * 4, 2 * 4, 24, False)
    shapes.update({f"self_attn.{n}_proj.bias": [shapes[f"self_attn.{n}_proj.weight"][0]] for n in "qkv"})
    save(os.path.join(out, "qwen2_block.safetensors"), lambda w, x: llama(w, x, 4, 2, 1e-5, 10000.0), shapes,
         4, 2, 6, 16, dict(heads=4, kv_heads=2, head_dim=4, ffn=24, theta=10000.0))
    # Qwen3: heads of q and k are normalised; wider than the feed-forward, with an odd count of rows.
    shapes = llama_shapes(14, 6 * 8, 3 * 8, 22, False)
    shapes.update({"self_attn.q_norm.weight": [8], "self_attn.k_norm.weight": [8]})
    save(os.path.join(out, "qwen3_block.safetensors"), lambda w, x: llama(w, x, 6, 3, 1e-5, 10000.0), shapes,
         5, 1, 7, 14, dict(heads=6, kv_heads=3, head_dim=8, ffn=22, theta=10000.0))


if __name__ == "__main__":
    main(sys.argv[1])
