#!/bin/sh
# How memory_model/assets/qwen2.5-coder-1.5b is tuned: an adapter and a codec in build/adapt-prose/, from a clone, resumable.
#
#     MEMORY3_DATA=FOLDER sh memory_model/recipes/qwen2.5-coder-1.5b.sh            # two CPU cores: two hours
#     MEMORY3_DATA=FOLDER DEVICE=cuda sh memory_model/recipes/qwen2.5-coder-1.5b.sh
#     DRY=1 sh memory_model/recipes/qwen2.5-coder-1.5b.sh                           # prints the commands
#
# Published question sets are read from MEMORY3_DATA (docs/data.md). Each command resumes its own run, so an interrupted
# recipe is started again. The heads are the first thirteen of `memory-model rank-heads` with the untuned model, all
# tokens each: few heads with all tokens read better than many heads with few.
set -eu

MODEL=${MODEL:-qwen2.5-coder-1.5b}
DEVICE=${DEVICE:-cpu}
STEPS=${STEPS:-200}
MINUTES=${MINUTES:-0} # time limit of each tuning run: then it is saved, the recipe stops, and goes on when started again
DRY=${DRY:-}
HEADS=${HEADS:-0.0:128,1.0:128,2.0:128,5.1:128,6.1:128,8.0:128,14.0:128,16.0:128,19.0:128,20.0:128,21.0:128,23.0:128,26.1:128}
OUT=build/adapt-prose
CORPUS=build/corpus

run() {
    echo "+ $*"
    [ -n "$DRY" ] || "$@"
}

# Data: prose for the codec and for keeping what the model can do, and questions about prose with unanswerable twins.
run python -m experiments prepare-data
run python -m experiments prose-questions "${MEMORY3_DATA:-MEMORY3_DATA}" --model "$MODEL"

# Read memories of the chosen heads, with noise in place of the codec. Then the codec of what they write. (60 more steps
# through that codec read no better and unlearned refusing: docs/log/qwen2.5-coder.md.)
run python -m memory_model.cli adapt --model "$MODEL" --corpus "$CORPUS" --device "$DEVICE" --minutes "$MINUTES" \
    --questions build/questions/prose_training.json --refused 0.2 --refused-articles 0.2 --all-as-text 0.12 \
    --distilled 0.3 --conversations 8 --ramp 40 --mixture articles:7,facts:0.8,hard:0.7,questions:0.5,keeping:0.7 \
    --heads "$HEADS" --rank 16 --learning-rate 4e-4 --decay 0.4 --codec-noise 0.05 --steps "$STEPS" --out "$OUT/reading"
run python -m memory_model.cli fit-codec --model "$MODEL" --adapter "$OUT/reading/adapter.safetensors" \
    --corpus "$CORPUS" --references 300 --points 30000 --factory tokens:312x8 --out "$OUT/codec.npz"
