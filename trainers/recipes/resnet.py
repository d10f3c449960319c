"""Recipe of a ResNet baseline, Goyal et al. 2017, arXiv:1706.02677."""

from trainers.recipes.schema import Recipe

RECIPES = {
    # Their decay of 1e-4 is added before the momentum of 0.9, which multiplies
    # it by ten.
    "resnet50_i1k": Recipe(
        source="arXiv:1706.02677, section 5",
        expected="ResNet-50: 76.3 % on ImageNet. Not run here.",
        dataset="imagenet2012",
        augment="inception_crop(smallest=0.08)|flip_lr",
        eval_preprocess="resize_small(256)|central_crop",
        model="ResNet50",
        batch_size=1024,
        epochs=90,
        optimizer="sgd",
        learning_rate=0.4,
        schedule="steps",
        warmup_steps=6_255,
        milestones="1/3,2/3,8/9",  # Epochs 30, 60 and 80.
        weight_decay=1e-3,
        clip_norm=0.0,
    ),
}
