"""Name of ``gigl.distributed.utils.dist_sampler`` that annotations of scripts use."""

from hopstream.compat.glt.sampler import SamplerInput as SamplerInput
