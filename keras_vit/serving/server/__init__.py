"""A small server with the REST interface of TF Serving, without Docker."""
