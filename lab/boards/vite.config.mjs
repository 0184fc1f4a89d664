export default {
  esbuild: { jsx: 'automatic' },
  build: { target: 'esnext', minify: false, chunkSizeWarningLimit: 99999 },
  define: { 'process.env.NODE_ENV': '"production"' },
};
