#!/bin/sh
# How memory_model/assets/smollm2-135m is tuned: an adapter and a codec in build/adapt/, from a clone, resumable.
#
#     make adapt                                    # hours on a CPU
#     DEVICE=cuda STEPS=1000 sh memory_model/recipes/smollm2-135m.sh
#     DRY=1 sh memory_model/recipes/smollm2-135m.sh # prints the commands
#
# Five stages: reading memories, reading them through the codec, preferences (DPO), two seeds of more of the second
# stage, and the mean of both seeds and their start. Each command resumes its own run, so an interrupted recipe is
# started again. The heads are those of the model folder, which `memory-model rank-heads` found.
# With build/questions/squad_training.json (`python -m experiments split-questions`) the mixtures also have questions
# about paragraphs, and preferences are trained; without it both are left out.
set -eu

DEVICE=${DEVICE:-cpu}
STEPS=${STEPS:-1000}
MINUTES=${MINUTES:-0} # time limit of each tuning run: then it is saved, the recipe stops, and goes on when started again
DRY=${DRY:-}
OUT=build/adapt
CORPUS=build/corpus
COUNTRIES=build/countries.jsonl

run() {
    echo "+ $*"
    [ -n "$DRY" ] || "$@"
}

adapt() {
    run python -m memory_model.cli adapt --data "$COUNTRIES" --corpus "$CORPUS" --device "$DEVICE" --minutes "$MINUTES" "$@"
}

paragraphs=
[ ! -f build/questions/squad_training.json ] || paragraphs=articles:2,

# Data: a corpus with questions that people asked, and invented countries.
run python -m experiments prepare-data
run python -m experiments invent-countries

# 1. Read memories, with noise in place of the codec.
adapt --steps "$STEPS" --refused 0.35 --out "$OUT/reading" \
    --mixture "facts:3,hard:3,${paragraphs}dialogue:1,questions:3,continual:1,keeping:1.3"
run python -m memory_model.cli fit-codec --adapter "$OUT/reading/adapter.safetensors" --corpus "$CORPUS" --out "$OUT/first.npz"

# 2. Read memories that pass through that codec.
adapt --start "$OUT/reading/adapter.safetensors" --codec "$OUT/first.npz" --steps $((STEPS / 3)) --ramp 0 \
    --refused 0.35 --all-as-text 0.1 --learning-rate 4e-4 --out "$OUT/through" \
    --mixture "hard:3,facts:2.5,${paragraphs}questions:3,dialogue:0.5,keeping:1.2"

# 3. Prefer what the memories say, and the mean with the stage before.
preferred=
if [ -n "$paragraphs" ]; then
    adapt --start "$OUT/through/adapter.safetensors" --codec "$OUT/first.npz" --steps $((STEPS / 8)) --ramp 0 \
        --refused 0.35 --refused-articles 0.2 --beta 0.1 --learning-rate 1.5e-4 --out "$OUT/preferred" \
        --mixture preferences:4,questions:1,keeping:0.5
    preferred=$OUT/preferred/adapter.safetensors
fi
# shellcheck disable=SC2086  # nothing if there is no such stage
run python -m experiments mean-adapter $preferred "$OUT/through/adapter.safetensors" --out "$OUT/start.safetensors"

# 4. More of the second stage, twice, and the mean.
for seed in 11 12; do
    adapt --start "$OUT/start.safetensors" --codec "$OUT/first.npz" --steps $((STEPS / 2)) --ramp 0 --seed $seed \
        --refused 0.45 --refused-articles 0.1 --all-as-text 0.05 --learning-rate 5e-4 --decay 0.8 \
        --out "$OUT/seed-$seed" --mixture "hard:5,facts:2,${paragraphs}questions:4,dialogue:0.5,keeping:1.2"
done
run python -m experiments mean-adapter "$OUT/seed-11/adapter.safetensors" "$OUT/seed-12/adapter.safetensors" \
    "$OUT/start.safetensors" --out "$OUT/adapter.safetensors"

# 5. The codec of the result.
run python -m memory_model.cli fit-codec --adapter "$OUT/adapter.safetensors" --data "$COUNTRIES" --references 500 \
    --factory tokens:156x8 --corpus "$CORPUS" --out "$OUT/codec.npz"
