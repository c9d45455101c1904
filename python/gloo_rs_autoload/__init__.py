"""What `import torch` calls: with GLOO_RS_TORCH=replace, gloo_rs takes the place of torch's backend gloo. It never raises."""


def autoload():
    import os
    import sys

    if os.environ.get("GLOO_RS_TORCH") == "replace":
        try:
            import gloo_rs.torch

            gloo_rs.torch.replace_gloo()
        except BaseException as error:
            print(f"GLOO_RS_TORCH=replace: torch keeps its own backend gloo: {error}", file=sys.stderr)
