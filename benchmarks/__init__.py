"""Speed of keras_vit beside other implementations; see README.md."""
