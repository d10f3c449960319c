#!/usr/bin/env bash
# Measures B/16 and L/16 on one GPU, on JAX and on PyTorch, in bfloat16, beside
# timm compiled: the rates and their share of the peak, in at most 8 minutes.
#
#   bash benchmarks/gpu.sh PEAK_TFLOPS [PYTHON]
#
# PEAK_TFLOPS is the peak of the card in bfloat16 by its maker, 989.4 for an
# H100. PYTHON has keras, jax, torch and timm; TensorFlow is not needed. What is
# not done in time is left out; build/gpu/ has the tables.
set -uo pipefail
peak=${1:?the peak of the GPU in TFLOP/s} python=${2:-python3}
end=$((SECONDS + 480))
for model in B/16 L/16; do
    for sizes in 128 256,512; do
        for backend in jax torch; do
            left=$((end - SECONDS))
            ((left > 0)) || break 3
            KERAS_BACKEND=$backend timeout $left "$python" \
                -m benchmarks.compare --backend=$backend --against=timm \
                --models=$model --precisions=bfloat16 --batch_sizes=$sizes \
                --train_batch_sizes=$sizes --repeats=6 --steps=10 \
                --matrix_size=8192 --peak_tflops="$peak" --compile \
                --torch_python="$python" \
                --out="build/gpu/${model%/16}_${sizes%,*}_$backend" ||
                echo "$model, $sizes images, $backend: not measured"
        done
    done
done
