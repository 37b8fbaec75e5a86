#!/usr/bin/env bash
# `sweep tune` on a Ray cluster: each proposed plan is one Ray job, whose log is read when it ends.
#   cluster/tune-ray.sh results/mine http://head:8265 10
# Change: train.py, which takes Megatron-LM's flags, and the resources that it asks for.
set -eu
result=$1 address=$2 budget=$3
exec sweep tune "$result" --budget "$budget" \
    --launch "ray job submit --address $address --working-dir . -- python train.py {flags}"
