"""Constants of memory traffic: bytes that element-wise kernels read and write, each with its source.

Elements are 2 bytes (bf16 or fp16), masks 1 byte, unless said. A kernel that reads one tensor and writes another moves 4
bytes per element. Where only "count" is given, the source is the kernel's own reads and writes.
"""

NORM = (4.0, 8.0)
"""Forward; backward (reads input and gradient, writes gradient, adds to weights' gradients). Count."""
RESIDUAL = (6.0, 6.0)
"""Reads two, writes one; its gradient is added to that of the branch. Count."""
DROPOUT = (1.0, 7.0)
"""Added to the residual kernel (the mask); backward on its own. Megatron-LM fuses bias, dropout and residual. Count."""
UNFUSED_DROPOUT = (5.0, 5.0)
"""Reads, writes, mask: of the embedding and of attention scores. Count."""
SCALE = 4.0
"""By a constant: reads, writes. Count."""
CAST = 3.0
"""Between 16 and 8 bits: reads, writes. Count."""
UNGATED = (4.0, 6.0)
"""Activation per element of ffn. Count."""
GATED = (6.0, 10.0)
"""Gated activation per element of ffn: reads two, writes one; backward reads three, writes two. Count."""
ROTARY = (4.0, 4.0)
"""Per element of queries and keys. Count."""
SOFTMAX = (4.0, 6.0)
"""Fused scale, mask and softmax per score (Megatron-LM's kernel). Count."""
RING_STEP = (4.5, 4.5)
"""Per step of a ring after the first and element of the output, or of the gradients of queries, keys and values: reads two,
writes one, three quarters of them. Count of Transformer Engine's context_parallel.py."""
WINDOW_SINKS = (540.0, 1080.0)
"""Per element of the queries of a layer with learned sinks in a window, where the stack does not have it in one kernel. Not
known: so much longer gpt-oss in bf16 takes (`fused_window_sinks` of nemo), a third of it taken to be the forward's. Linear in
tokens: the scores of a sequence, kept, would not fit (18 layers x 4 sequences x 2 GB on a B200), and Megatron-Bridge has sinks
fused from Transformer Engine 2.8 on (NVIDIA-NeMo/Megatron-Bridge@12bc34a8 models/gpt_oss/gpt_oss_provider.py). Its clamps,
outside the fused activation (fused_bias_geglu.py: two clamps, joined), are an eighth of it."""
CONTEXT_TRANSPOSE = 4.0
QKV_GRADIENT_CONCAT = 6.0
"""Copies around unfused attention, per element of a x d. Count."""
BIAS_GRADIENT = 2.0
"""Reads the output's gradient once. Count."""
EMBEDDING = (6.0, 6.0)
"""Per token and hidden element: read, write, add positions or scale."""
EMBEDDING_TABLE = 2.0
"""Per weight of the table: its gradient is written whole, once per micro-batch."""
LOSS_UNFUSED = (28.0, 10.0)
LOSS_FUSED = (18.0, 10.0)
"""Vocabulary-parallel cross entropy per logit: copy to fp32, maximum, subtract, exponential, sum. Count."""
SOFTCAP = (4.0, 6.0)
"""tanh of logits. Count."""
SCORES = (8.0, 8.0)
"""Router: fp32 scores read once, probabilities written once."""
ROUTER_KERNELS = (15.0, 12.0)
"""Small kernels of top-k, maps, counts, auxiliary loss, forward and backward."""
UNFUSED_ROUTER = 72 / 31
"""Kernels of the router without fusion over those with it (NVIDIA, "Optimizing DeepSeek-V3 Training Performance on NVIDIA GB200
NVL72", section 2.1.4, Megatron-LM docs/discussions)."""
PERMUTE = (4.0, 4.0)
"""Per routed copy and hidden element: permute and unpermute, forward and backward. Count."""

CONVOLUTION = (4.0, 12.0)
"""Short convolution along the sequence, per channel and token: reads and writes; backward runs it again, then reads input and
gradient, writes a gradient, and adds to weights' gradients of each block of tokens. Count."""
GATED_NORM = (6.0, 12.0)
"""Norm of the output times a gate: reads two, writes one; backward reads three, writes two, adds to weights. Count."""
OUTPUT_GATE = (6.0, 10.0)
"""Sigmoid of a gate times attention's output: reads two, writes one; backward reads three, writes two. Count."""
TOPK = 4.0
"""Choice of the best keys, per score of the indexer: fp32 scores read once. Count."""

POOL = (4.0, 12.0)
"""Entries of compressed attention, per element of two projections in 32 bits: reads; backward reads, writes gradients and reads
them in 16 bits for two products. Count."""

GRADIENT_CLEAR = 4.0
"""Per weight on a rank and step: the fp32 gradient buffer is set to zero."""
