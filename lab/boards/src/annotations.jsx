// Draws a board's annotations as Grafana does: a dashed line and a triangle at each mark.
import { useLayoutEffect } from 'react';

// The recorded queries' $__interval.
const STEP_SECONDS = 1;
const TRIANGLE = 5;

// Returns the annotations that are shown, with their colours and their marks' times in seconds.
export function annotated(board, answers, theme) {
  return board.annotations.list.filter(({ enable }) => enable).map(({ name, iconColor }) => ({
    name,
    color: theme.visualization.getColorByName(iconColor),
    times: answers.filter(({ panel }) => panel === name).flatMap(({ series }) => series.flatMap(({ values }) => starts(values))),
  }));
}

// Samples above 0 that are no farther apart than the step are one mark, drawn at its start.
function starts(values) {
  const times = values.filter(([, value]) => parseFloat(value) > 0).map(([at]) => at);
  return times.filter((at, index) => index === 0 || at - times[index - 1] > STEP_SECONDS);
}

// A child of TimeSeries, whose plot calls the hook each time it draws.
export function Marks({ config, annotations }) {
  useLayoutEffect(() => {
    config.addHook('draw', plot => annotations.forEach(({ color, times }) => times.forEach(at => mark(plot, color, at))));
  }, [config, annotations]);
  return null;
}

function mark({ ctx, bbox, valToPos }, color, at) {
  const x = Math.round(valToPos(at * 1000, 'x', true));
  const bottom = bbox.top + bbox.height;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color;
  ctx.lineWidth = 2;
  ctx.setLineDash([5, 5]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bottom);
  ctx.stroke();
  ctx.beginPath();
  ctx.moveTo(x, bottom);
  ctx.lineTo(x - TRIANGLE, bottom + TRIANGLE);
  ctx.lineTo(x + TRIANGLE, bottom + TRIANGLE);
  ctx.fill();
  ctx.restore();
}

// The names of the annotations, right of the board's first row.
export function Names({ annotations }) {
  return <div style={{ position: 'absolute', right: 8, top: 4, display: 'flex', gap: 24, color: '#ccc' }}>
    {annotations.map(({ name, color, times }) => <span key={name} data-empty={times.length === 0 ? name : undefined}>
      <span style={{ color }}>▲</span> {name}</span>)}
  </div>;
}
