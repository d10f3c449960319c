#!/bin/bash
# Train with JAX on a Cloud TPU that exists already, of one host or several:
#
#   export TPU=my-tpu ZONE=us-central2-b
#   export RECIPE=i21k_b16 RUN_DIR=gs://my-bucket/runs/i21k_b16
#   docs/cluster/tpu_jax.sh --batch_size=4096   # from the root of this project
#
# Arguments after the name of this file are flags of trainers.train. RUN_DIR is
# an address in a bucket, or a folder that every host has mounted at that path.
set -eu
: "${TPU:?must be the name of the TPU}" "${ZONE:?must be its zone}"
: "${RECIPE:?must name a recipe}" "${RUN_DIR:?must be gs://... or a mounted folder}"

on_all() {
    gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" \
        --worker=all --command="$1"
}

# One process a host; they find each other. TensorFlow only reads the images.
train="cd keras_vit && KERAS_BACKEND=jax python3 -m trainers.train"
train+=" --strategy=fsdp --recipe=$RECIPE --run_dir=$RUN_DIR $*"

on_all "mkdir -p keras_vit"
gcloud compute tpus tpu-vm scp --recurse keras_vit trainers setup.py \
    pyproject.toml README.md "$TPU:keras_vit" --zone="$ZONE" --worker=all
on_all "pip install --quiet 'jax[tpu]' './keras_vit[train]'"
# 75: stopped and saved, 69: a host was lost. Any other code needs a human.
code=75
while [[ $code == 75 || $code == 69 ]]; do
    code=0
    on_all "$train" || code=$?
done
exit "$code"
