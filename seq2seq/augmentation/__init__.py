"""Changed copies of training pairs, and epochs whose text or segmentation is drawn anew."""
