//! Gradients of a step's parts, added as in a binary tree over them.

/// The sums over the complete subtrees that end with the newest part, the greatest first: a binary
/// counter of parts.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// By level; the sum over 2ˡ parts. One counts while its bit of `parts` is set.
    levels: Vec<Sum>,
    parts: u32,
}

#[derive(Debug, Default)]
struct Sum {
    gradients: Vec<f32>,
    loss: f32,
}

impl Tree {
    /// Forgets all parts.
    pub(crate) fn clear(&mut self) {
        self.parts = 0;
    }

    /// Parts so far.
    pub(crate) fn parts(&self) -> u32 {
        self.parts
    }

    /// Adds the next part. `gradients` and the loss that comes back are then the sums over the
    /// greatest subtree that it completes: over all parts, where their number is a power of two.
    /// `more` says whether another part follows.
    pub(crate) fn add(&mut self, gradients: &mut [f32], mut loss: f32, more: bool) -> f32 {
        let level = self.parts.trailing_ones() as usize;
        for left in &self.levels[..level] {
            loss += left.loss;
            for (right, left) in gradients.iter_mut().zip(&left.gradients) {
                *right += left;
            }
        }
        self.parts += 1;
        if more {
            if self.levels.len() == level {
                self.levels.push(Sum::default());
            }
            let kept = &mut self.levels[level];
            kept.gradients.clear();
            kept.gradients.extend_from_slice(gradients);
            kept.loss = loss;
        }
        loss
    }
}
