from hopstream.sample.raw_ids import find_keys as find_keys
from hopstream.sample.sampling_settings import SamplingSettings as SamplingSettings
from hopstream.sample.walks import WalkSettings as WalkSettings
from hopstream.sample.walks import random_walks as random_walks
from hopstream.sample.walks import walk_batches as walk_batches
