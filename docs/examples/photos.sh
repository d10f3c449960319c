#!/usr/bin/env bash
# The commands of docs/photos.md, in their order: from a folder of photos to a
# model that answers on a server, in a browser and on a phone. `make photos`
# installs what they need and runs them in the root of the checkout. It takes
# a few minutes on two cores.
set -euo pipefail

# Photos: three classes, and two files that are not images.
python docs/examples/make_photos.py photos new_photos

# Check them. The exit status is 1, because of the two files.
keras-vit inspect-data folder:photos --out=saved_models/photos_data \
    || [ $? = 1 ]
rm photos/flower/half.jpg photos/portrait/notes.jpg

# Train: first how long it would take, then for real.
keras-vit train --dataset=folder:photos --run_dir=saved_models/photos \
    --model=mu/16 --patch_size=8 --image_size=64 --epochs=60 \
    --learning_rate=5e-3 --dry_run
keras-vit train --dataset=folder:photos --run_dir=saved_models/photos \
    --model=mu/16 --patch_size=8 --image_size=64 --epochs=60 \
    --learning_rate=5e-3

# How good it is, and what it says about new photos.
keras-vit evaluate --run_dir=saved_models/photos
keras-vit predict --run_dir=saved_models/photos new_photos
keras-vit predict --run_dir=saved_models/photos new_photos --format=csv \
    > new_photos.csv

# What it does not know: honest probabilities, and unknown pictures.
python docs/examples/make_unknown.py pictures
keras-vit calibrate --run_dir=saved_models/photos --unknown=pictures/logos
keras-vit evaluate --run_dir=saved_models/photos
keras-vit predict --run_dir=saved_models/photos new_photos \
    pictures/logos/000.png pictures/logos/001.png

# Where it looks.
keras-vit inspect --run_dir=saved_models/photos

# For a server, a browser and a phone, compared with the model.
keras-vit export --run_dir=saved_models/photos \
    --formats=saved_model,web,tflite --use_attention --tflite_takes_pixels

# Serve it, and ask. The guide uses a second terminal instead of the `&`.
keras-vit serve saved_models/photos/export --port=8501 &
server=$!
trap 'kill $server' EXIT
curl --fail --silent --retry 120 --retry-delay 1 --retry-connrefused \
    http://localhost:8501/healthz
image=$(base64 < new_photos/1.jpg | tr -d '\n')
curl --fail-with-body http://localhost:8501/v1/models/photos:predict --data \
    '{"signature_name": "serve_bytes", "instances": [{"b64": "'$image'"}]}'
keras-vit serve-check --url=http://localhost:8501 \
    --export=saved_models/photos/export/saved_model/photos/1 --requests=20

# The page that runs the model in the browser.
python -m http.server 8000 \
    --directory saved_models/photos/export/web/photos/1 &
page=$!
trap 'kill $server $page' EXIT
curl --fail --silent --retry 20 --retry-delay 1 --retry-connrefused \
    http://localhost:8000/ > /dev/null
