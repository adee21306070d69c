#!/bin/sh
# How memory_model/assets/qwen2.5-coder-0.5b is tuned: an adapter and a codec in build/adapt-small/, from a clone, resumable.
#
#     MEMORY3_DATA=FOLDER sh memory_model/recipes/qwen2.5-coder-0.5b.sh            # two CPU cores: two hours
#     MEMORY3_DATA=FOLDER DEVICE=cuda sh memory_model/recipes/qwen2.5-coder-0.5b.sh
#     DRY=1 sh memory_model/recipes/qwen2.5-coder-0.5b.sh                           # prints the commands
#
# Published question sets are read from MEMORY3_DATA (docs/data.md). Each command resumes its own run, so an interrupted
# recipe is started again. All heads are kept, with all tokens: the codec makes their memories small.
set -eu

MODEL=${MODEL:-qwen2.5-coder-0.5b}
DEVICE=${DEVICE:-cpu}
STEPS=${STEPS:-150}
MINUTES=${MINUTES:-0} # time limit of each tuning run: then it is saved, the recipe stops, and goes on when started again
DRY=${DRY:-}
OUT=build/adapt-small
CORPUS=build/corpus

run() {
    echo "+ $*"
    [ -n "$DRY" ] || "$@"
}

# Data: prose for the codec and for keeping what the model can do, and questions about prose with unanswerable twins.
run python -m experiments prepare-data
run python -m experiments prose-questions "${MEMORY3_DATA:-MEMORY3_DATA}" --model "$MODEL"

# 1. Read memories of all heads, with noise in place of a codec.
run python -m memory_model.cli adapt --model "$MODEL" --corpus "$CORPUS" --device "$DEVICE" --minutes "$MINUTES" \
    --questions build/questions/prose_training.json --refused 0.2 --refused-articles 0.2 --all-as-text 0.1 \
    --distilled 0.15 --conversations 12 --references 6 --ramp 40 \
    --mixture articles:8,facts:0.6,hard:0.6,questions:0.4,keeping:0.5 \
    --heads all --rank 16 --learning-rate 5e-4 --decay 0.5 --codec-noise 0.08 --pass-tokens 700 \
    --steps "$STEPS" --out "$OUT/first"

# 2. The codec of what it writes, and steps through it, in two runs; the mean of two stages reads better than either.
run python -m memory_model.cli fit-codec --model "$MODEL" --adapter "$OUT/first/adapter.safetensors" \
    --corpus "$CORPUS" --references 300 --points 30000 --factory tokens:312x8x4 --out "$OUT/codec.npz"
through() { # start, mixture, share of all references as text, share of refusals, rate, seed, steps, folder
    run python -m memory_model.cli adapt --model "$MODEL" --corpus "$CORPUS" --device "$DEVICE" --minutes "$MINUTES" \
        --questions build/questions/prose_training.json --refused 0.2 --distilled 0.15 --conversations 12 \
        --references 6 --ramp 0 --decay 0.8 --codec "$OUT/codec.npz" --pass-tokens 700 \
        --start "$1" --mixture "$2" --all-as-text "$3" --refused-articles "$4" --learning-rate "$5" --seed "$6" \
        --steps "$7" --out "$8"
}
through "$OUT/first/adapter.safetensors" articles:8,facts:0.6,hard:0.6,questions:0.4,keeping:0.4 0.08 0.22 3e-4 5 \
    $((STEPS * 7 / 15)) "$OUT/second"
run python -m experiments mean-adapter "$OUT/first/adapter.safetensors" "$OUT/second/adapter.safetensors" \
    --out "$OUT/mean.safetensors"
through "$OUT/mean.safetensors" articles:9,facts:0.5,hard:0.5,questions:0.4,keeping:0.3 0.06 0.2 4e-4 11 \
    $((STEPS * 14 / 15)) "$OUT/third"
run python -m experiments mean-adapter "$OUT/mean.safetensors" "$OUT/third/adapter.safetensors" \
    --out "$OUT/adapter.safetensors"
