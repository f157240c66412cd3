import io.anserini.analysis.AnalyzerUtils;
import io.anserini.analysis.DefaultEnglishAnalyzer;
import io.anserini.search.SimpleSearcher;
import io.anserini.search.query.BagOfWordsQueryGenerator;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.lucene.document.BinaryDocValuesField;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StringField;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.TopFieldDocs;
import org.apache.lucene.search.similarities.BM25Similarity;
import org.apache.lucene.store.FSDirectory;
import org.apache.lucene.util.BytesRef;

/**
 * The reference ranking: anserini's own analyzer, query generator and searcher.
 *
 * <p>{@code terms TEXTS}: the terms of each line. {@code rank DOCUMENTS QUERIES K FOLDER}: documents are lines of id, tab,
 * text; each line of output has the hits of one query, best first, each as {@code id:score bits}.
 */
public final class LuceneOracle {
  private static final float K1 = 0.9f;
  private static final float B = 0.4f;

  public static void main(String[] args) throws Exception {
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    if (args[0].equals("terms")) {
      for (String line : Files.readAllLines(Path.of(args[1]))) {
        out.println(String.join(" ", AnalyzerUtils.analyze(DefaultEnglishAnalyzer.newDefaultInstance(), line)));
      }
    } else {
      Path folder = Path.of(args[4]);
      index(Files.readAllLines(Path.of(args[1])), folder);
      rank(Files.readAllLines(Path.of(args[2])), Integer.parseInt(args[3]), folder, out);
    }
    out.flush();
  }

  private static void index(List<String> documents, Path folder) throws Exception {
    IndexWriterConfig config = new IndexWriterConfig(DefaultEnglishAnalyzer.newDefaultInstance());
    config.setSimilarity(new BM25Similarity(K1, B));
    try (IndexWriter writer = new IndexWriter(FSDirectory.open(folder), config)) {
      for (String line : documents) {
        int tab = line.indexOf('\t');
        String id = line.substring(0, tab);
        Document document = new Document();
        document.add(new StringField("id", id, Field.Store.YES));
        document.add(new BinaryDocValuesField("id", new BytesRef(id)));
        document.add(new TextField("contents", line.substring(tab + 1), Field.Store.NO));
        writer.addDocument(document);
      }
      writer.forceMerge(1);
    }
  }

  private static void rank(List<String> queries, int k, Path folder, PrintStream out) throws Exception {
    try (SimpleSearcher searcher = new SimpleSearcher(folder.toString());
        DirectoryReader reader = DirectoryReader.open(FSDirectory.open(folder))) {
      searcher.setBM25(K1, B);
      IndexSearcher raw = new IndexSearcher(reader);
      raw.setSimilarity(new BM25Similarity(K1, B));
      for (String query : queries) {
        SimpleSearcher.Result[] results = searcher.search(query, k);
        // anserini spreads equal scores apart after ranking; the scores are read before that.
        TopFieldDocs scores = raw.search(
            new BagOfWordsQueryGenerator().buildQuery("contents", DefaultEnglishAnalyzer.newDefaultInstance(), query),
            k, SimpleSearcher.BREAK_SCORE_TIES_BY_DOCID, true);
        StringBuilder line = new StringBuilder();
        for (int i = 0; i < results.length; i++) {
          ScoreDoc hit = scores.scoreDocs[i];
          if (!raw.doc(hit.doc).get("id").equals(results[i].docid)) {
            throw new IllegalStateException("two searches of one index disagree on: " + query);
          }
          line.append(i == 0 ? "" : " ").append(results[i].docid).append(':').append(Float.floatToIntBits(hit.score));
        }
        out.println(line);
      }
    }
  }
}
