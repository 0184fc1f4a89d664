use super::*;

const PAIR: Shape = Shape { channels: 1, height: 1, width: 2 };

fn dataset() -> Dataset {
    Samples::new(PAIR, 10, (0..8).collect(), vec![3, 1, 4, 1]).split(1)
}

#[test]
fn the_last_samples_are_held_out() {
    let Dataset { train, evaluation } = dataset();
    assert_eq!((train.labels(), train.image(2)), (&[3, 1, 4][..], &[4, 5][..]));
    assert_eq!((evaluation.label(0), evaluation.image(0)), (1, &[6, 7][..]));
}

#[test]
fn any_difference_changes_the_fingerprint() {
    let original = dataset();
    let change = |change: fn(&mut Dataset)| {
        let mut changed = dataset();
        change(&mut changed);
        changed
    };
    let pixel = change(|data| match &mut data.train.content {
        Content::Memory(pixels) => pixels[0] ^= 1,
        Content::Values(_) | Content::Pictures(_) | Content::Random { .. } => unreachable!(),
    });
    let label = change(|data| data.evaluation.labels = Labels::Samples(vec![2]));
    let shape = change(|data| data.train.shape = Shape { channels: 1, height: 2, width: 1 });
    let classes = change(|data| data.train.classes = 11);
    let names = change(|data| data.train.class_names = Arc::from(["zero".to_owned()]));
    let moved = Samples::new(PAIR, 10, (0..8).collect(), vec![3, 1, 4, 1]).split(2);
    assert_eq!(original.fingerprint(), dataset().fingerprint());
    for other in [pixel, label, shape, classes, names, moved] {
        assert_ne!(original.fingerprint(), other.fingerprint(), "{other:?}");
    }
}

fn prepared(samples: &Samples, ids: &[u64], pass: Option<Pass>) -> Vec<f32> {
    let mut values = vec![5.0];
    samples.prepare(ids, pass, &mut values, &mut Vec::new());
    values
}

#[test]
fn each_channel_is_normalised_by_its_own_moments() {
    let shape = Shape { channels: 2, height: 1, width: 2 };
    let samples =
        Samples::new(shape, 1, vec![0, 255, 0, 255], vec![0]).normalised(Normalise::new(&[0.5, 0.0], &[0.25, 2.0]));
    assert_eq!(prepared(&samples, &[0], None), [-2.0, 2.0, 0.0, 0.5]);
}

#[test]
fn a_view_depends_on_seed_epoch_and_sample_and_on_nothing_else() {
    let shape = Shape { channels: 3, height: 8, width: 8 };
    let pixels = (0..20 * shape.bytes()).map(|at| (at % 251) as u8).collect();
    let augment = Augment { random_crop_padding: 2, random_horizontal_flip: 0.5, ..Augment::default() };
    let samples = Samples::new(shape, 1, pixels, vec![0; 20]).augmented(augment);
    let pass = Some(Pass { seed: 1, epoch: 2 });
    let alone = prepared(&samples, &[7], pass);
    let among = prepared(&samples, &[3, 9, 7, 1], pass);
    assert_eq!(among[2 * shape.bytes()..3 * shape.bytes()], alone);
    let differ = |other: Pass| {
        (0..20).filter(|id| prepared(&samples, &[*id], Some(other)) != prepared(&samples, &[*id], pass)).count()
    };
    assert!(differ(Pass { seed: 2, epoch: 2 }) > 10 && differ(Pass { seed: 1, epoch: 3 }) > 10);
    let plain = prepared(&samples, &[7], None);
    assert_eq!(plain[0], samples.normalise().levels()[0][usize::from(samples.image(7)[0])]);
}

#[test]
fn random_samples_are_the_same_wherever_they_are_held() {
    let all = Samples::random(Shape { channels: 3, height: 5, width: 5 }, 4, vec![1; 10], 6);
    let whole = prepared(&all, &[8], None);
    let Dataset { train, evaluation } = all.split(3);
    assert_eq!(prepared(&evaluation, &[1], None), whole);
    assert_eq!((train.len(), evaluation.len(), train.memory_bytes()), (7, 3, 28));
    assert_ne!(prepared(&train, &[0], None), prepared(&train, &[1], None));
}
