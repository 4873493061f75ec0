"""Writes a policy as openpi reads it: `params/` and `assets/<asset_id>/norm_stats.json`.

python -m launch.export --policy=runs/NAME/policy --format=openpi --asset_id=trossen --out=FOLDER
"""

from __future__ import annotations

import sys

from absl import flags, logging

from launch import options


def define() -> None:
    """The flags of this entry point."""
    flags.DEFINE_string("policy", "", "a policy's folder")
    flags.DEFINE_enum("format", "openpi", ["openpi"], "of the result")
    flags.DEFINE_string("out", "", "folder of the result")
    flags.DEFINE_string("asset_id", "", "as openpi's configuration names the robot; default: the policy's robot")
    flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "of the stored weights")
    flags.DEFINE_bool("overwrite", False, "replace what the folder holds")


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.WARNING)
    asked = flags.FLAGS
    if argv[1:] or not asked.policy or not asked.out:
        raise options.OptionError("give --policy=FOLDER and --out=FOLDER")
    from cel_jax.models.openpi_export import ExportError, export_openpi
    from cel_jax.models.saving import load_policy

    try:
        policy = load_policy(asked.policy, "float32")
        asset_id = asked.asset_id or policy.features.robot_type
        export_openpi(
            asked.out, policy.config, policy.params, policy.norm_stats, asset_id, asked.dtype, asked.overwrite
        )
    except (ExportError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {asked.out}: params and assets/{asset_id}", flush=True)
    return 0


def cli() -> None:
    options.run(main, define)


if __name__ == "__main__":
    cli()
