#!/bin/sh
# How memory_model/assets/qwen2.5-coder-1.5b is tuned: an adapter, a codec and a probe in build/adapt-prose/, from a clone, resumable.
#
#     MEMORY3_DATA=FOLDER sh memory_model/recipes/qwen2.5-coder-1.5b.sh            # two CPU cores: five hours
#     MEMORY3_DATA=FOLDER DEVICE=cuda sh memory_model/recipes/qwen2.5-coder-1.5b.sh
#     DRY=1 sh memory_model/recipes/qwen2.5-coder-1.5b.sh                           # prints the commands
#
# Published question sets are read from MEMORY3_DATA (docs/data.md). Each command resumes its own run, so an interrupted
# recipe is started again. The heads are the first thirteen and the first twenty-eight of `memory-model rank-heads` with
# the untuned model, all tokens each.
set -eu

MODEL=${MODEL:-qwen2.5-coder-1.5b}
DEVICE=${DEVICE:-cpu}
STEPS=${STEPS:-200}
MINUTES=${MINUTES:-0} # time limit of each tuning run: then it is saved, the recipe stops, and goes on when started again
DRY=${DRY:-}
FEW=${FEW:-0.0:128,1.0:128,2.0:128,5.1:128,6.1:128,8.0:128,14.0:128,16.0:128,19.0:128,20.0:128,21.0:128,23.0:128,26.1:128}
HEADS=${HEADS:-0.0:128,1.0:128,1.1:128,2.0:128,3.1:128,5.1:128,6.1:128,8.0:128,9.1:128,10.0:128,11.1:128,12.0:128,14.0:128,14.1:128,16.0:128,16.1:128,18.0:128,19.0:128,20.0:128,21.0:128,21.1:128,22.1:128,23.0:128,23.1:128,25.1:128,26.0:128,26.1:128,27.0:128}
OUT=build/adapt-prose
CORPUS=build/corpus

run() {
    echo "+ $*"
    [ -n "$DRY" ] || "$@"
}

# Data: prose for the codec and for keeping what the model can do, and questions about prose with unanswerable twins.
run python -m experiments prepare-data
run python -m experiments prose-questions "${MEMORY3_DATA:-MEMORY3_DATA}" --model "$MODEL"

# 1. Read memories of few heads, with noise in place of a codec: the steps are cheap.
run python -m memory_model.cli adapt --model "$MODEL" --corpus "$CORPUS" --device "$DEVICE" --minutes "$MINUTES" \
    --questions build/questions/prose_training.json --refused 0.2 --refused-articles 0.2 --all-as-text 0.12 \
    --distilled 0.3 --conversations 8 --ramp 40 --mixture articles:7,facts:0.8,hard:0.7,questions:0.5,keeping:0.7 \
    --heads "$FEW" --rank 16 --learning-rate 4e-4 --decay 0.4 --codec-noise 0.05 --steps "$STEPS" --out "$OUT/few"

# 2. Go on with all heads that are kept. The mean of both stages reads better than either.
run python -m memory_model.cli adapt --model "$MODEL" --corpus "$CORPUS" --device "$DEVICE" --minutes "$MINUTES" \
    --questions build/questions/prose_training.json --refused 0.2 --refused-articles 0.22 --all-as-text 0.12 \
    --distilled 0.4 --conversations 20 --references 8 --ramp 0 \
    --mixture articles:7,facts:0.8,hard:0.7,questions:0.5,keeping:0.7 --start "$OUT/few/adapter.safetensors" \
    --heads "$HEADS" --learning-rate 3e-4 --decay 0.6 --codec-noise 0.08 --pass-tokens 700 --seed 3 \
    --steps $((STEPS * 7 / 10)) --out "$OUT/more"
run python -m experiments mean-adapter "$OUT/few/adapter.safetensors" "$OUT/more/adapter.safetensors" \
    --out "$OUT/mean.safetensors"

# 3. The codec of what they write, and steps through it, in two runs whose mean is the adapter.
run python -m memory_model.cli fit-codec --model "$MODEL" --adapter "$OUT/more/adapter.safetensors" \
    --corpus "$CORPUS" --references 300 --points 30000 --factory tokens:312x8x4 --out "$OUT/codec.npz"
through() { # start, mixture, share of all references as text, decay, seed, steps, folder
    run python -m memory_model.cli adapt --model "$MODEL" --corpus "$CORPUS" --device "$DEVICE" --minutes "$MINUTES" \
        --questions build/questions/prose_training.json --refused 0.2 --refused-articles 0.22 --distilled 0.4 \
        --conversations 20 --references 8 --ramp 0 --codec "$OUT/codec.npz" --learning-rate 2.5e-4 --pass-tokens 700 \
        --start "$1" --mixture "$2" --all-as-text "$3" --decay "$4" --seed "$5" --steps "$6" --out "$7"
}
through "$OUT/mean.safetensors" articles:8,facts:0.7,hard:0.7,questions:0.4,keeping:0.5 0.08 0 8 \
    $((STEPS / 5)) "$OUT/first"
through "$OUT/first/adapter.safetensors" articles:8,facts:0.5,hard:0.5,questions:0.3,keeping:0.3 0.06 0.75 9 \
    $((STEPS * 17 / 40)) "$OUT/second"
run python -m experiments mean-adapter "$OUT/first/adapter.safetensors" "$OUT/second/adapter.safetensors" \
    --out "$OUT/adapter.safetensors"

# 4. What tells that nothing answers.
run python -m memory_model.cli fit-refusal --model "$MODEL" --adapter "$OUT/adapter.safetensors" --codec "$OUT/codec.npz" \
    --device "$DEVICE" --data data/everyday_training.json --data build/questions/refusal_training.json \
    --out "$OUT/answerability.npz"
# In the folder of a model with these files: `memory-model fit-requests --data data/everyday_training.json
# --data build/questions/refusal_training.json --requests data/requests.jsonl --requests data/general_requests.jsonl`,
# and after its export `python -m experiments probe-lean … --save`, since the queries of rounded weights are others.
