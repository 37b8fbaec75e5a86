"""Megatron-LM's flags as they stand in scripts and YAML, and those that say nothing about the shape of a model."""

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sim_core.documents import Lines, Values, Words
from sim_core.models.readers.argument import flag_of
from sim_core.models.readers.megatron_arguments import HIDDEN, LAYERS


class Given(NamedTuple):
    """The values of one flag; `()` for a bare flag."""

    values: Words
    line: int  # 0: unknown
    maybe: bool = False  # under a condition of the script, which may not hold


Flags = dict[str, list[Given]]
"""Flag with its dashes -> where it is given, in order."""

_FLAG = re.compile(r"--[A-Za-z]")
_WORD = re.compile(r"""'[^']*'|"[^"]*"|[^\s()'"\\;`]+|[();]""")
_QUOTED_FLAGS = re.compile(r"""(?<![^\s(=])(["'])([^"']*--[^"']*)\1""")
_COMMENT = re.compile(r"(^|\s)#.*$")
_SHELL = re.compile(r"[;|&<>]|\d>")
"""What ends the words of a flag."""
_SET = re.compile(
    r"""(?<![\w$.{,-])([A-Za-z_]\w*)(\+?)=(?!=)("[^"]*"|'[^']*'|\$\(\([^()]*\)\)|[^\s;&|()'"]*)(?=[\s;&|)]|$)"""
    r"""|(?<![\w$.{,-])([A-Za-z_]\w*)\+?="""
)
"""An assignment, anywhere in a line; with a value that is more than one word: its name alone."""
_BEGINS = re.compile(r"(?:^|[;&|({]|\b(?:then|else|do))\s*(if|case)\b")
_ENDS = re.compile(r"(?:^|[;&|})\s])(fi|esac)(?=[\s;&|)}]|$)")
_FOLLOWS = re.compile(r"\bthen\b|\bin\b")
"""What a shell has in the same line or soon after."""
_GUARDED = re.compile(r"^\s*(?:\[\[?\s|test\s|\(\().*(?:&&|\|\|)")
"""A test that a command follows in its line."""
_CHANGED = re.compile(
    r"\bfor\s+(\w+)\s+in\b|\bread\s+(?:-\w+\s+)*(\w+)|\(\(\s*(\w+)\s*(?:[-+*/%]?=[^=]|\+\+|--)|\blet\s+\W?(\w+)|\bunset\s+(\w+)|"
    r"\bgetopts\s+\S+\s+(\w+)"
)
"""Other ways in which a variable gets a value."""
_ARITHMETIC = re.compile(r"\$\(\(((?:[^()$`]|\([^()$`]*\)){1,120})\)\)")
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_DEFAULTED = re.compile(r"\$\{\w+:-([^{}$]*)\}")
_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
MODEL_ARGS = "MODEL_ARGS"
DEEPSPEED = "--deepspeed"
DEEPSPEED_EXPERTS = "--mlp-type"


def flags_of_text(text: str) -> Flags:
    """All `--flag value ...` of a text.

    Comments are left out. Variables that the text sets to one plain value are put in; one that it sets to several, or in the
    branches of an `if` alone, stays a variable: which branch runs is unknown. Flags in such branches are `maybe`.
    """
    taken: list[tuple[str, list[str], int]] = []
    known: dict[str, str] = {}
    lines = [_COMMENT.sub("", line) for line in text.splitlines()]
    maybe = _under_conditions(lines)
    several = _assigned_to_several(lines, maybe)
    taking = False
    for number, raw in enumerate(lines, start=1):
        line = _filled(raw, known)
        assigned = {name: value for name, value in _assigned(line) if name not in several}
        known |= {name: value for name, value in assigned.items() if not re.search(r"[$`(]|--", value)}  # plain ones
        for word in _WORD.findall(_QUOTED_FLAGS.sub(r" \2 ", line)):
            if _FLAG.match(word):
                flag, equals, value = word.partition("=")
                taken.append((flag_of(flag.lstrip("-")), [value] if equals and value else [], number))
                taking = True
            elif word in "()" or _SHELL.match(word):
                taking = False
            elif taking:
                taken[-1][1].append(word.strip("'\""))
        taking = taking and line.rstrip().endswith("\\")
    flags: Flags = {}
    for flag, values, number in taken:
        flags.setdefault(flag, []).append(Given(tuple(values), number, number - 1 in maybe))
    return flags


def _under_conditions(lines: list[str]) -> set[int]:
    """Numbers of the lines, from 0, inside an `if` or a `case`, or behind a test and `&&`."""
    found, depth = set(), 0
    for number, line in enumerate(lines):
        begins, ends = len(_BEGINS.findall(line)), len(_ENDS.findall(line))
        if begins and not _FOLLOWS.search(" ".join(lines[number : number + 4])):
            begins = 0  # of another language, as in a text for Python
        if depth or begins or _GUARDED.match(line):
            found.add(number)
        depth = max(depth + begins - ends, 0)
    return found


def _assigned(line: str) -> Iterator[tuple[str, str]]:
    """Names and values of the assignments in a line; `$` for a value that is more than a word."""
    for match in _SET.finditer(line):
        plain = match[3] is not None and not match[2]
        yield match[1] or match[4], match[3].strip("'\"") if plain else "$"


def _assigned_to_several(lines: list[str], maybe: set[int]) -> set[str]:
    """Variables with several values in the text, or one that no line tells; `maybe`: lines that may not run."""
    values: dict[str, set[str]] = {}
    changed, always = set(), set()
    for number, line in enumerate(lines):
        for name, value in _assigned(line):
            values.setdefault(name, set()).add(value)
            always |= set() if number in maybe else {name}
        changed |= {name for match in _CHANGED.finditer(line) for name in match.groups() if name}
    return changed | {name for name, texts in values.items() if len(texts) > 1 or name not in always}


def _filled(line: str, known: Mapping[str, str]) -> str:
    """A line with the variables that are known put in, and arithmetic on whole numbers worked out."""
    line = _DEFAULTED.sub(lambda match: match[1], line)
    line = _VARIABLE.sub(lambda match: known.get(match[1] or match[2], match[0]), line)
    return _ARITHMETIC.sub(lambda match: _worked_out(match, known), line) if "$((" in line else line


def _worked_out(match: re.Match[str], known: Mapping[str, str]) -> str:
    try:
        return str(_value(ast.parse(match[1].strip(), mode="eval").body, known))
    except (SyntaxError, ValueError, ZeroDivisionError):
        return match[0]


def _value(node: ast.expr, known: Mapping[str, str]) -> int:
    """The value of an expression of whole numbers and variables. Raises ValueError, ZeroDivisionError."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return int(known.get(node.id, ""))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return int(_OPERATORS[type(node.op)](_value(node.left, known), _value(node.right, known)))
    raise ValueError


def flags_of_document(document: Values, lines: Lines) -> Flags | None:
    """The flags of a YAML document: its MODEL_ARGS, or a mapping of Megatron's names; None if it holds neither."""
    arguments = document.get(MODEL_ARGS, document)
    above = (MODEL_ARGS,) if MODEL_ARGS in document else ()
    if not isinstance(arguments, Mapping) or not {LAYERS.flag, HIDDEN.flag} & {
        flag_of(str(key).lstrip("-")) for key in arguments
    }:
        return None
    flags: Flags = {}
    for key, value in arguments.items():
        if value is not None and value is not False:
            values = () if value is True else tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())
            flags.setdefault(flag_of(str(key).lstrip("-")), []).append(Given(values, lines.get((*above, str(key)), 0)))
    return flags


NOT_MODELLED = {
    "--dsa-indexer-skip-topk-offset": "keys that layers choose for each other",
    "--dsa-indexer-topk-freq": "keys that layers choose for each other",
    "--decoder-num-layers": "an encoder and a decoder",
    "--encoder-num-layers": "an encoder and a decoder",
    "--enable-mhc-connections": "hyper-connections",
    "--heterogeneous-layers-config-encoded-json": "layers of different sizes",
    "--heterogeneous-layers-config-path": "layers of different sizes",
    DEEPSPEED_EXPERTS: "experts of DeepSpeed",
    "--moe-expert-rank-capacity-factor": "a capacity per rank",
    "--mtp-use-repeated-layer": "prediction layers that share weights",
    "--qk-l2-norm": "a norm of queries and keys without weights",
    "--topk": "experts of DeepSpeed",
    "--yaml-cfg": "numbers in another file",
}
"""Flags that change the model in a way that is not described here: refused."""

_FREE = {
    "plan and schedule": """
        --tensor-model- --model-parallel- --pipeline-model-parallel --context-parallel- --cp-comm --hierarchical-context
        --hybrid-context-parallel --expert-model- --expert-tensor-parallel --moe-expert-parallel --sequence-parallel
        --num-layers-per- --num-virtual-stages --microbatch-group --decoder-first-pipeline --decoder-last-pipeline
        --account-for- --pp-partition --no-pipeline-parallel --use-tp-pp-dp --enable-zbh1 --micro-batch --global-batch
        --batch-size --rampup-batch --step-batch --decrease-batch --recompute- --checkpoint-activations --distribute-saved
        --fine-grained --offload- --activation-offload --cpu-offloading --cuda-graph --enable-cuda-graph --external-cuda
        --world-size
    """,
    "optimizer, communication, precision": """
        --use-distributed- --num-distributed- --overlap- --no-overlap- --delay- --defer- --wgrad-deferral --ddp-
        --use-megatron-fsdp --megatron-fsdp --use-torch-fsdp2 --torch-fsdp2 --fsdp- --use-fsdp --use-custom-fsdp
        --data-parallel- --outer-dp- --zero- --remote-device --deepspeed --cpu-optimizer --no-align- --disable-align-
        --grad-reduce-in --accumulate-allreduce --use-precision-aware --main-grads --main-params --exp-avg --optimizer --adam-
        --sgd- --muon- --lion- --use-nccl-ub --nccl- --gtp- --tp-comm --disable-tp-comm --use-ring-exchange --bf16 --fp16
        --fp8 --fp4 --first-last- --num-layers-at- --use-sharp --sharp- --high-priority --distributed- --local-rank
        --init-model-with --DDP-impl --no-async-tensor --sync-tp --no-use-layer-wise --keep-fp8 --reuse-grad --te-
        --use-cpu-init --no-initialization --disable-gloo --lazy-mpu --no-gradient-reduce --suggested-comm --fp32-residual
        --no-contiguous-buffers --cpu-torch-adam --use-torch-optimizer --use-pin-memory --use-tutel
    """,
    "kernels: which implementation runs is an input of its own": """
        --attention-backend --flash-attention-version --flash-decode --use-flash-attn --transformer-impl --use-mcore-models
        --use-legacy-models --no-masked-softmax --no-bias- --no-rope-fusion --apply-rope-fusion
        --no-gradient-accumulation-fusion --gradient-accumulation-fusion --no-persist-layer-norm --cross-entropy-
        --disable-jit-fuser --use-fused-weighted --fused-residual --use-transformer-engine --attention-softmax-in
        --apply-query-key-layer --no-query-key-layer --disable-bf16-reduced --deterministic-mode --batch-invariant
        --abort-on-unmet --fp16-lm-cross --output-logit-dtype --mla-down-proj-fusion --use-kitchen --kitchen- --scaled-
        --masked-softmax-fusion --bias- --use-te-activation --no-flash --enable-experimental
    """,
    "routing and dispatch: same shapes": """
        --moe-router-load --moe-router-pre-softmax --moe-router-topk-s --moe-router-score --moe-router-dtype
        --moe-router-enable-expert-bias --moe-router-bias-update --moe-router-force --moe-router-fusion --moe-router-padding
        --moe-router-quantile --moe-aux-loss --moe-z-loss --moe-input-jitter --moe-token- --moe-enable-deepep --moe-deepep
        --moe-flex --moe-hybridep --moe-ncclep --moe-permute --moe-apply-probs --moe-per-layer --moe-layer-recompute
        --moe-shared-expert-overlap --moe-use- --moe-single- --moe-upcycling --moe-enable-routing --moe-routing-trace
        --moe-loss-coeff --moe-min-capacity --moe-eval-capacity --create-moe-param --disable-moe-token --moe-dispatch
        --moe-combine --moe-pad-experts-for --moe-paged --use-grouped-gemm
    """,
    "constants of layers: same shapes": """
        --norm-epsilon --layernorm-epsilon --apply-layernorm-1p --apply-residual-connection-post --rotary- --rope-
        --use-rope-scaling --no-rope-freq --yarn- --no-yarn- --mscale --glu-linear-offset --activation-func-clamp
        --openai-gelu --onnx-safe --init-method --embedding-init --use-mup --mup- --mtp-loss --mtp-detach --qk-clip
        --softmax-scale --sinkhorn --kv-scale --no-bert-binary --calculate-per-token --cache-mla --clone-scatter
        --disable-clone-scatter --window-attn-impl --add-position-embedding --enable-gpt-oss --mtp-spec --keep-mtp-spec
        --dsa-indexer-loss --dsa-indexer-use-sparse --dsa-kernel --dsa-indexer-r --dsa-indexer-k-norm --dsa-indexer-scoring
        --no-dsa- --disable-dsa-
    """,
    "training, data, tokenizer files": """
        --lr --min-lr --decoupled- --warmup --override-opt --use-checkpoint-opt --weight-decay --start-weight --end-weight
        --no-weight-decay --apply-wd --clip-grad --loss-scale --initial-loss --min-loss --hysteresis --train- --eval-
        --full-validation --skip-train --exit- --iterations-to-skip --seed --data- --data --split --mock-data --num-workers
        --valid- --test- --dataloader- --dataset --reset- --eod-mask --no-create-attention --no-mmap --sample --short-seq
        --mask-prob --per- --fim- --mid-level --allow-ambiguous --object-storage --num-dataset --merge-file --tokenizer
        --tiktoken --null-tokenizer --patch-tokenizer --disable-tokenizer --trust-remote --chat-template --vocab-extra-ids
        --sft --max-padding --rl- --grpo- --finetune --multiple-validation --validation- --phase- --freeze-all --use-gigatoken
        --random-ltd --curriculum --generation-length --skip-iter --variable-seq
    """,
    "checkpoints, logs, faults, launchers": """
        --save --load --no-save --no-load --ckpt- --no-ckpt --async- --dist-ckpt --use-dist-ckpt --use-persistent
        --use-checkpoint-args --use-mp-args --auto-detect-ckpt --pretrained-checkpoint --non-persist --persistent-
        --override-ckpt --replication --verify- --export- --checkpoint-path --log- --logging- --timing- --tensorboard --wandb-
        --profile --use-pytorch-profiler --pytorch-profiler --record- --memory-snapshot --nvtx --no-one-logger --one-logger
        --app-tag --manual-gc --disable-manual-gc --no-check --check- --rerun- --result-rejected --empty-unused --no-barrier
        --no-log --disable-log --enable-one-logger --inprocess- --enable-ft --calc-ft --ft- --error-injection --fault-
        --straggler --disable-straggler --run-workload --adlr- --otel --logits- --inference- --nnodes --nproc --node --master
        --rdzv --max-restarts --tee --redirects --role --force-multi --num-nodes --num-gpus --hostfile --help --ntasks
        --cpus-per --gpus-per --gres --time --job-name --partition --account --container --output --error --codecarbon --kill-
        --jobid --wait --query-gpu --format --config-logger --git --use-contiguous --train-sync --gpu-sniff --dump-param
        --capture-range --cpuctxsw --cuda-memory-usage --trace --enable-msc --disable-msc --flight- --no-flight-
        --disable-flight- --no-rl- --perform-rl --no-inference- --disable-ckpt- --disable-strict- --no-strict- --disable-save
        --no-manual --start-eval
    """,
    "further switches of Megatron-LM core 0.20 for how, not what, is computed": """
        --no-tp-comm --no-fp8-wgrad --disable-fp8-wgrad --moe-mlp-glu --moe-shared-expert-glu --min-offloaded --delta-offload
        --ep-overlap --distrib-optim --disable-symmetric --create-all-gather --enable-full-sharding --use-same-sampling
        --no-pin- --symmetric-ar --mlp-chunks --no-clone-scatter --fake-process
    """,
}
FREE_PREFIXES = tuple(" ".join(_FREE.values()).split())
"""Beginnings of flags that do not change the shape of the model."""


def is_free(flag: str) -> bool:
    """Whether a flag is known not to change the shape of the model."""
    return flag.startswith(FREE_PREFIXES)
