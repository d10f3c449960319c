"""A small server with the REST interface of TF Serving, for one machine."""
