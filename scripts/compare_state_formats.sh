#!/usr/bin/env bash
# Trains the same small decoder on the same data in every state format, with three seeds each, and draws the losses:
# docs/adam.md shows the picture. About half an hour on two cores.
#   compare_state_formats.sh [DIRECTORY]   where the metrics and the picture go (build/state-formats)
#   STEPS=300 compare_state_formats.sh     a shorter one
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-}" in -*) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2 ;; esac

spillway=${SPILLWAY:-build/release/cli/spillway}
[ -x "$spillway" ] || scripts/build.sh release spillway
results=${1:-build/state-formats}
mkdir -p "$results"

# beta2 = 0.999 is the hard case: a step changes v by less than a thousandth.
cat >"$results/config.json" <<JSON
{
  "train_micro_batch_size_per_gpu": 16,
  "gradient_clipping": 1.0,
  "optimizer": {"type": "AdamW", "params": {"lr": 2e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}},
  "scheduler": {
    "type": "WarmupCosineLR",
    "params": {"warmup_num_steps": 100, "warmup_type": "linear", "cos_min_ratio": 0.1}
  },
  "spillway": {"model": "decoder-tiny", "eval_every": 100}
}
JSON
data=() # all of fortunes that is English, but for what the loss is measured on
while IFS= read -r file; do data+=(--data "$file"); done < <(
  find /usr/share/games/fortunes -maxdepth 1 -type f ! -name '*.dat' ! -name '*.u8' ! -name ascii-art ! -name wisdom |
    LC_ALL=C sort)

for seed in 1 2 3; do
  for format in fp32 bf16 compact8; do
    metrics=$results/$format-$seed.jsonl
    [ -s "$results/$format-$seed.json" ] && continue # done by an earlier call
    echo "seed $seed, state format $format"
    "$spillway" train --config "$results/config.json" "${data[@]}" --eval-data /usr/share/games/fortunes/wisdom \
      --steps "${STEPS:-1200}" --seed "$seed" --state-format "$format" --metrics "$metrics" \
      --json "$results/$format-$seed.json" >"$results/$format-$seed.txt"
  done
done
scripts/plot_state_formats.py "$results"
