#!/bin/bash
# Train on a Cloud TPU that exists already:
#
#   export TPU=my-tpu ZONE=us-central2-b NUM_HOSTS=1
#   export RECIPE=i21k_b16 RUN_DIR=gs://my-bucket/runs/i21k_b16
#   docs/cluster/tpu.sh --batch_size=4096   # from the root of this project
#
# Arguments after the name of this file are flags of trainers.train. RUN_DIR is
# an address in a bucket, or a folder that every host has mounted at that path.
set -eu
: "${TPU:?must be the name of the TPU}" "${ZONE:?must be its zone}"
: "${RECIPE:?must name a recipe}" "${RUN_DIR:?must be gs://... or a mounted folder}"

on() {
    gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" \
        --worker="$1" --command="$2"
}

# On one host, the process itself holds the TPU. On a slice with several hosts,
# the TensorFlow servers hold it, and one process drives them all.
if [[ ${NUM_HOSTS:-1} == 1 ]]; then
    place="--tpu=local"
    setup="NEXT_PLUGGABLE_DEVICE_USE_C_API=true"
    setup+=" TF_PLUGGABLE_DEVICE_LIBRARY_PATH=/lib/libtpu.so"
else
    place="--tpu=$TPU"
    setup="TPU_LOAD_LIBRARY=0"
fi
train="cd keras_vit && $setup python3 -m trainers.train --strategy=tpu $place"
train+=" --recipe=$RECIPE --run_dir=$RUN_DIR $*"

# tensorflow-tpu replaces tensorflow, which the extra `train` installs.
on all "mkdir -p keras_vit"
gcloud compute tpus tpu-vm scp --recurse keras_vit trainers setup.py \
    pyproject.toml README.md "$TPU:keras_vit" --zone="$ZONE" --worker=all
on all "pip install --quiet tensorflow-tpu tensorflow-datasets matplotlib \
    importlib_resources Pillow scikit-learn tensorboard ./keras_vit \
    --find-links=https://storage.googleapis.com/libtpu-tf-releases/index.html"
# 75: stopped and saved. Any other code needs a human, or the TPU is gone.
code=75
while [[ $code == 75 ]]; do
    code=0
    on 0 "$train" || code=$?
done
exit "$code"
