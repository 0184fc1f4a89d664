// Draws a board from the answers of its queries with Grafana's own components.
import { createRoot } from 'react-dom/client';
import { createTheme, getDisplayProcessor, FieldType, ThemeContext, dateTime, toDataFrame, classicColors } from '@grafana/data';
import { TimeSeries, BigValue, BigValueColorMode, BigValueGraphMode, BigValueTextMode, PanelChrome, Table, GlobalStyles, PortalContainer } from '@grafana/ui';
import { annotated, Marks, Names } from './annotations.jsx';

const theme = createTheme({ colors: { mode: 'dark' } });
const named = (legend, labels) => legend.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, key) => labels[key] ?? '');
const ROW = 34;
const finite = text => Number.isFinite(parseFloat(text)) ? parseFloat(text) : null;

function configured(panel, name) {
  const values = structuredClone(panel.fieldConfig.defaults);
  for (const { matcher, properties } of panel.fieldConfig.overrides) {
    if (matcher.options !== name) continue;
    for (const { id, value } of properties) {
      const parts = id.split('.');
      const last = parts.pop();
      parts.reduce((at, part) => (at[part] ??= {}), values)[last] = value;
    }
  }
  return values;
}

function frames(panel, answers) {
  let index = 0;
  return answers.flatMap(({ legend, series }) => series.map(({ metric, values }) => {
    const name = named(legend, metric) || panel.title;
    const config = configured(panel, name);
    const custom = { drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 8, showPoints: 'never', pointSize: 4,
      spanNulls: false, axisPlacement: 'auto', axisLabel: '', scaleDistribution: { type: 'linear' }, stacking: { mode: 'none' },
      hideFrom: { viz: false, legend: false, tooltip: false }, ...config.custom };
    const color = { mode: 'fixed', fixedColor: classicColors[index % classicColors.length] };
    const frame = toDataFrame({ fields: [
      { name: 'Time', type: FieldType.time, values: values.map(([at]) => at * 1000), config: {} },
      { name, type: FieldType.number, values: values.map(([, value]) => finite(value)), labels: {},
        config: { ...config, displayName: name, color, custom } }] });
    frame.fields[1].state = { seriesIndex: index++ };
    frame.fields.forEach(field => { field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' }); });
    return frame;
  }));
}

// Merges the newest values of all queries into a row for each job, as the panel's transformations do.
function rows(panel, answers) {
  const jobs = new Map();
  const columns = answers.filter(({ legend }) => legend !== 'phase').map(({ legend }) => legend);
  for (const { legend, series } of answers) {
    for (const { metric, values } of series) {
      const key = `${metric.job_namespace}/${metric.job_name}`;
      const job = jobs.get(key) ?? { namespace: metric.job_namespace, job: metric.job_name, at: -1 };
      const [at, value] = values.at(-1);
      if (legend !== 'phase') job[legend] = parseFloat(value);
      else if (at > job.at) Object.assign(job, { at, phase: metric.phase });
      jobs.set(key, job);
    }
  }
  const all = [...jobs.values()].filter(({ phase }) => phase);
  const field = (name, type) => ({ name, type, values: all.map(job => job[name] ?? null),
    config: { ...configured(panel, name), links: [], custom: { filterable: false, ...configured(panel, name).custom } } });
  const frame = toDataFrame({ fields: [...['namespace', 'job', 'phase'].map(name => field(name, FieldType.string)),
    ...columns.map(name => field(name, FieldType.number))] });
  frame.fields.forEach(field => { field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' }); });
  return frame;
}

// A number has the colour of its threshold. The first one is null in JSON: it begins at -Infinity.
function byThresholds(field) {
  const steps = (field.config.thresholds?.steps ?? []).map(step => ({ ...step, value: step.value ?? -Infinity }));
  const config = { ...field.config, color: { mode: 'thresholds' }, thresholds: { mode: 'absolute', steps } };
  return getDisplayProcessor({ field: { ...field, config }, theme, timeZone: 'utc' });
}

function Content({ panel, answers, annotations, from, to, width, height }) {
  const all = frames(panel, answers);
  if (all.length === 0) return <div data-empty={panel.title} style={{ color: '#888', padding: 8 }}>no values</div>;
  if (panel.type === 'table') return <Table data={rows(panel, answers)} width={width} height={height} />;
  if (panel.type === 'stat') {
    const field = all[0].fields[1];
    const value = byThresholds(field)(field.values.findLast(value => value !== null));
    return <BigValue theme={theme} width={width} height={height} value={{ ...value, title: field.config.displayName }} colorMode={BigValueColorMode.Value}
      graphMode={BigValueGraphMode.None} textMode={panel.options.textMode === 'name' ? BigValueTextMode.Name : BigValueTextMode.Value} />;
  }
  return <TimeSeries frames={all} structureRev={1} width={width} height={height} timeZone="utc"
    timeRange={{ from: dateTime(from * 1000), to: dateTime(to * 1000), raw: { from: dateTime(from * 1000), to: dateTime(to * 1000) } }}
    legend={panel.options.legend} options={{}}>{config => <Marks config={config} annotations={annotations} />}</TimeSeries>;
}

function Board({ board, answers }) {
  const cell = 1600 / 24;
  const times = answers.flatMap(answer => answer.series.flatMap(series => series.values.map(([at]) => at)));
  const [from, to] = times.reduce(([least, most], at) => [Math.min(least, at), Math.max(most, at)], [Infinity, -Infinity]);
  const annotations = annotated(board, answers, theme);
  const bottom = Math.max(...board.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return <ThemeContext.Provider value={theme}><GlobalStyles /><PortalContainer />
    <div style={{ position: 'relative', width: 1600, height: bottom * ROW + 8, fontFamily: 'DejaVu Sans' }}>
      {board.panels.map(panel => {
        const { x, y, w, h } = panel.gridPos;
        const place = { position: 'absolute', left: x * cell + 4, top: y * ROW + 4 };
        if (panel.type === 'row') return <div key={panel.id} style={{ ...place, color: '#ccc', fontWeight: 600 }}>▾ {panel.title}</div>;
        return <div key={panel.id} style={place}><PanelChrome title={panel.title} width={w * cell - 8} height={h * ROW - 8}>
          {(width, height) => <Content panel={panel} answers={answers.filter(answer => answer.panel === panel.title)} annotations={annotations} from={from} to={to} width={width} height={height} />}
        </PanelChrome></div>;
      })}
      <Names annotations={annotations} />
    </div></ThemeContext.Provider>;
}

// The title tells draw.sh how it went.
const wrong = [];
window.addEventListener('error', event => wrong.push(event.message));
function judge() {
  const empty = [...document.querySelectorAll('[data-empty]')].map(panel => `no values in ${panel.dataset.empty}`);
  const all = [...wrong, ...empty];
  document.title = all.length === 0 ? 'DONE' : 'ERROR ' + all.join('; ');
}
const load = path => fetch(path).then(answer => answer.json());
Promise.all([load('/board.json'), load('/answers.json')]).then(([board, answers]) => {
  createRoot(document.getElementById('root')).render(<Board board={board} answers={answers} />);
  setTimeout(judge, 3000);
}).catch(error => { wrong.push(String(error)); judge(); });
